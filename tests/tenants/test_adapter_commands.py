"""Adapters from the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class

from tenants import intake, tasks, uploads
from tenants.actors import of_command
from tenants.models import Adapter, AuditEntry, Plan, Tenant
from tests.tenants.conftest import write_adapter


@pytest.fixture
def acme(world: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    settings.INCOMING_DIR, settings.ADAPTER_STORE = tmp_path / "incoming", tmp_path / "store"
    monkeypatch.setattr(tasks.check_adapter, "delay", intake.check)
    world.actor("globex")
    tenant: Tenant = world.actor("acme").tenant
    return tenant


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    result: dict[str, Any] = json.loads(out.getvalue())
    assert load_command_class("tenants", arguments[0]).describe(result).strip()
    return result


def test_from_add_to_collect(acme: Tenant, tmp_path: Path) -> None:
    good, bad = write_adapter(tmp_path / "good"), write_adapter(tmp_path / "bad", bias="all", surprise=1)
    run("add_adapter", "--tenant", "acme", "--name", "pirate", "--path", str(good), "--no-wait")
    run("add_adapter", "--tenant", "acme", "--name", "pirate", "--path", str(bad), "--no-wait")
    shown = run("adapter", "acme/pirate")
    assert [version["version"] for version in shown["versions"]] == [1, 2]
    fields = {problem["field"] for problem in shown["versions"][1]["report"]["problems"]}
    assert fields == {"bias", "surprise"}
    assert run("share_adapter", "acme/pirate", "--with", "globex")["shared"] is True
    assert run("adapter", "--adapter", "acme/pirate")["shared_with"] == ["globex"]
    assert run("adapters", "--tenant", "globex")["shared_with_it"] == ["acme/pirate"]
    listed = run("adapters", "--tenant", "acme")
    assert ([row["adapter"] for row in listed["adapters"]], listed["used"]["versions"]) == (["acme/pirate"], 2)
    with pytest.raises(CommandError, match="shared with globex"):
        run("delete_adapter", "acme/pirate")
    assert run("share_adapter", "acme/pirate", "--with", "globex", "--withdraw")["shared"] is False
    assert run("delete_adapter", "acme/pirate", "--number", "2")["version"] == 2
    Adapter.objects.filter(tenant=acme).update(current=None)
    assert run("delete_adapter", "acme/pirate")["deleted"] is True
    assert run("collect_adapters")["contents"] == 0
    assert run("collect_adapters", "--grace-hours", "0")["contents"] == 1
    actors = set(AuditEntry.objects.filter(tenant=acme, action="adapter.deleted").values_list("actor_kind", flat=True))
    assert actors == {"command"}


def test_versions_are_compared(acme: Tenant, tmp_path: Path) -> None:
    for name, rank in (("one", 2), ("two", 4)):
        source = write_adapter(tmp_path / name, rank=rank)
        run("add_adapter", "acme/pirate", "--path", str(source), "--no-wait")
    found = run("compare_versions", "acme/pirate", "--from", "1", "--to", "2")
    assert (found["adapter"], found["before"], found["after"]) == ("acme/pirate", 1, 2)
    assert {"name": "r", "before": 2, "after": 4} in found["config"]
    assert {row["after"]["rank"] for row in found["modules"]} == {4}
    words = load_command_class("tenants", "compare_versions").describe(found)
    assert "largest rank: 2 → 4" in words
    same = run("compare_versions", "acme/pirate", "--from", "2", "--to", "2")
    assert (same["figures"], same["config"], same["modules"]) == ([], [], [])


def test_uploads_are_listed_and_cancelled(acme: Tenant) -> None:
    declared = [uploads.Declared("adapter.tar", 7, "0" * 64)]
    first, second = (uploads.create(of_command(), acme, name=name, files=declared) for name in ("pirate", "parrot"))
    rows = run("uploads", "acme")["uploads"]
    assert [(row["id"], row["adapter"]) for row in rows] == [(str(second.pk), "parrot"), (str(first.pk), "pirate")]
    assert {(row["state"], row["bytes"], row["received"], row["version"]) for row in rows} == {("open", 7, 0, None)}
    assert run("cancel_upload", "acme", "--upload", str(first.pk))["cancelled"] is True
    assert [row["id"] for row in run("uploads", "acme", "--open")["uploads"]] == [str(second.pk)]
    for words in (("acme", str(first.pk)), ("globex", str(second.pk))):
        with pytest.raises(CommandError):
            call_command("cancel_upload", words[0], "--upload", words[1])
    entry = AuditEntry.objects.get(tenant=acme, action="upload.cancelled")
    assert (entry.actor_kind, entry.subject) == ("command", str(first.pk))


@pytest.mark.parametrize(
    "words", ["acme/pirate", "--adapter acme/pirate", "--tenant acme --name pirate", "pirate --tenant acme"]
)
@pytest.mark.parametrize("command", ["adapter", "releases"])
def test_an_adapter_is_named_in_any_of_four_ways(command: str, words: str, acme: Tenant, tmp_path: Path) -> None:
    run("add_adapter", *words.split(), "--path", str(write_adapter(tmp_path / "a")), "--no-wait")
    assert run(command, *words.split())["adapter"] == "acme/pirate"


def test_quotas_stand_beside_the_limits(acme: Tenant, tmp_path: Path) -> None:
    run("set_adapter_quotas", "acme", "--max-adapters", "3", "--max-adapter-bytes", "none")
    run("add_adapter", "acme/pirate", "--path", str(write_adapter(tmp_path / "a")), "--no-wait")
    shown = run("show_limits", "acme")["adapter_quotas"]
    assert shown["max_adapters"] == {"limit": 3, "used": 1, "left": 2}
    assert shown["max_adapter_versions"]["used"] == 1
    assert run("set_limits", "acme", "--max-adapters", "4")["adapter_quotas"]["max_adapters"] == 4
    assert run("set_plan", "tiny", "--max-adapters", "2")["limits"]["max_adapters"] == 2


def test_quotas(acme: Tenant, tmp_path: Path) -> None:
    set_to = run("set_adapter_quotas", "--tenant", "acme", "--max-adapters", "0", "--max-adapter-bytes", "5")
    assert set_to["quotas"] == {"max_adapters": 0, "max_adapter_versions": None, "max_adapter_bytes": 5}
    with pytest.raises(CommandError, match="max_adapters of 0 would be exceeded"):
        run("add_adapter", "--tenant", "acme", "--name", "p", "--path", str(write_adapter(tmp_path / "a")), "--no-wait")
    run("set_adapter_quotas", "--tenant", "acme", "--max-adapters", "none")
    assert run("set_adapter_quotas", "--plan", "standard", "--max-adapters", "7")["plan"] == "standard"
    assert Plan.standard().max_adapters == 7
    assert AuditEntry.objects.unscoped().filter(action="plan.adapter_quotas_set", tenant=None).count() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("adapters", "--tenant", "nobody"), "no tenant 'nobody'"),
        (("adapter", "acme/nothing"), "no adapter 'nothing'"),
        (("adapter", "pirate"), "Write the adapter as tenant/name; 'pirate' does not say whose"),
        (("adapter",), "Say the adapter, as tenant/name"),
        (("adapter", "acme/a", "--adapter", "acme/b"), "Two different adapters"),
        (("releases", "acme/a", "--tenant", "globex"), "Two different tenants"),
        (("promote_adapter", "--name", "nothing"), "'nothing' does not say whose"),
        (("set_adapter_quotas", "acme", "--plan", "standard", "--max-adapters", "1"), "not both"),
        (("adapter", "acme/a\0"), "no adapter"),
        (("delete_adapter", "acme/nothing", "--number", "3"), "no adapter"),
        (("share_adapter", "acme/nothing", "--with", "globex"), "no adapter"),
        (("share_adapter", "acme/nothing", "--with", "nobody"), "no tenant"),
        (("compare_versions", "acme/nothing", "--from", "1", "--to", "2"), "no adapter"),
        (("uploads", "acme", "--limit", "0"), "--limit"),
        (("collect_adapters", "--grace-hours", "-1"), "--grace-hours"),
        (("set_adapter_quotas", "--tenant", "acme"), "at least one"),
        (("set_adapter_quotas", "--tenant", "acme", "--max-adapters", "-1"), "--max-adapters"),
        (("set_adapter_quotas", "--tenant", "acme", "--max-adapters", "9" * 30), "--max-adapters"),
        (("set_adapter_quotas", "--plan", "nothing", "--max-adapters", "1"), "no plan"),
    ],
)
def test_failures_are_one_sentence(arguments: tuple[str, ...], message: str, acme: Tenant) -> None:
    with pytest.raises(CommandError, match=message):
        call_command(*arguments)
