"""The commands about releases: what --json says, what people read, and failures in one sentence."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class

from tenants.models import Activation, AdapterVersion, AuditEntry


def run(command: str, *arguments: str) -> tuple[dict[str, Any], str]:
    out = io.StringIO()
    call_command(command, "--tenant", "acme", "--name", "pirate", *arguments, "--json", stdout=out)
    result: dict[str, Any] = json.loads(out.getvalue())
    return result, load_command_class("tenants", command).describe(result)


@pytest.fixture
def pirate(world: Any) -> Any:
    adapter = world.adapter(world.actor("acme").tenant, "pirate")
    AdapterVersion.objects.create(adapter=adapter, number=2, state="ready", digest="2" * 64)
    return adapter


def test_from_canary_to_rollback(pirate: Any) -> None:
    canary, words = run("canary_adapter", "--number", "2", "--percent", "10")
    assert (canary["version"], canary["canary"], canary["canary_percent"], canary["kind"]) == (1, 2, 10, "canary")
    assert words == "acme/pirate stands for v1, 10 % v2 (release 2)."
    assert run("promote_adapter")[0]["version"] == 2
    assert run("rollback_adapter")[1] == "acme/pirate stands for v1 (release 4)."
    assert run("promote_adapter", "--number", "2")[0]["release"] == 5
    history, words = run("releases", "--limit", "3")
    assert [row["release"] for row in history["releases"]] == [5, 4, 3]
    assert "rollback by command" in words
    kinds = set(AuditEntry.objects.filter(tenant=pirate.tenant).values_list("actor_kind", flat=True))
    assert kinds == {"command"}


def test_policy_and_pin(pirate: Any) -> None:
    assert run("promote_adapter", "--automatic", "off")[0] == {"adapter": "acme/pirate", "auto_promote": False}
    assert run("promote_adapter", "--automatic", "on")[1].endswith("promoted by themselves.")
    assert run("pin_adapter")[0]["pinned"] is True
    assert run("pin_adapter", "--off")[1] == "acme/pirate is not pinned."


def test_a_trial_waived_or_asked_for_again(pirate: Any, settings: Any, tmp_path: Any) -> None:
    settings.ADAPTER_STORE = tmp_path
    version = AdapterVersion.objects.create(adapter=pirate, number=3, state="rejected", digest="3" * 64)
    Activation.objects.create(tenant=pirate.tenant, version=version, state="failed", report={"message": "no"})
    with pytest.raises(CommandError, match="files of acme/pirate v3 are gone"):
        run("waive_adapter", "--number", "3", "--again")
    (tmp_path / "33" / version.digest).mkdir(parents=True)
    assert run("waive_adapter", "--number", "3", "--again")[0]["state"] == "checked"
    assert run("waive_adapter", "--number", "3", "--reason", "tried by hand")[1] == "acme/pirate v3 is ready."
    with pytest.raises(CommandError, match="there is no trial to decide"):
        run("waive_adapter", "--number", "3", "--reason", "twice")


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("promote_adapter", ("--number", "9"), "no version 'acme/pirate@9'"),
        ("promote_adapter", (), "no canary to promote"),
        ("canary_adapter", ("--number", "2", "--percent", "101"), "between 0 and 100"),
        ("rollback_adapter", (), "no release to go back to"),
    ],
)
def test_what_cannot_be_is_said(pirate: Any, command: str, arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        run(command, *arguments)
