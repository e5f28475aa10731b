"""Commands for keys, operators' keys and peppers: the functions behind the API, from the command line."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command, load_command_class
from django.utils import timezone

from tenants import key_ring, keys
from tenants.access import authenticate
from tenants.callers import caller_of_command, caller_of_key, operator_of_key
from tenants.db import Pool
from tenants.errors import InvalidKey
from tenants.models import ApiKey, AuditEntry, OperatorKey
from tests.tenants.test_commands import run
from tests.tenants.test_files import at_once

PLAIN = {"models": None, "addresses": None, "limits": {}, "member": None, "scope": "inference"}


def part(result: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in like}


def entry(subject: str, action: str) -> AuditEntry:
    return AuditEntry.objects.unscoped().get(subject=subject, action=action)


def test_issue_change_rotate_revoke_and_list(world: Any) -> None:
    actor = world.actor("acme", member_limits={})
    assert part(run("issue_key", "acme"), PLAIN) == PLAIN
    wanted = {
        "name": "ci",
        "scope": "inference",
        "member": "user-acme",
        "models": ["llama-tiny"],
        "addresses": ["203.0.113.0/24", "::1/128"],
        "limits": {"max_concurrent": 2},
        "state": "active",
    }
    options = "--name ci --member user-acme --models llama-tiny --addresses 203.0.113.0/24,::1 --max-concurrent 2"
    issued = run("issue_key", "acme", *options.split(), "--expires-in-days", "9")
    assert part(issued, wanted) == wanted
    assert entry(issued["public_id"], "key.issued").actor_kind == "command"

    rotated = run("rotate_key", issued["public_id"], "--overlap-hours", "2")
    assert part(rotated, wanted) == wanted
    assert rotated["predecessor"] == issued["public_id"]
    assert rotated["predecessor_until"] < (timezone.now() + timedelta(hours=2, seconds=1)).isoformat()

    changed = run("change_key", rotated["api_key"], "--models", "all", "--max-concurrent", "none", "--name", "")
    assert part(changed, PLAIN | {"member": "user-acme", "addresses": wanted["addresses"]}) == PLAIN | {
        "member": "user-acme",
        "addresses": wanted["addresses"],
    }
    assert run("change_key", rotated["public_id"], "--expires-in-days", "never")["expires_at"] is None

    assert run("revoke_key", issued["public_id"])["state"] == "revoked"
    listed = [key["public_id"] for key in run("keys", "acme")["keys"]]
    assert listed[0] == rotated["public_id"]
    assert actor.key.public_id in listed
    assert issued["public_id"] not in listed
    assert issued["public_id"] in [key["public_id"] for key in run("keys", "acme", "--all")["keys"]]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("issue_key nobody", "no tenant"),
        ("issue_key acme --member nobody", "no member"),
        ("issue_key acme --addresses 203.0.113.1/24", "203.0.113.0/24"),
        ("issue_key acme --addresses ,", "names nothing"),
        ("issue_key acme --addresses none", "--addresses: 'none' is no address or network; say all"),
        ("change_key KEY --addresses none", "--addresses: 'none' is no address or network; say all"),
        ("issue_key acme --models mistral", "mistral"),
        ("issue_key acme --expires-in-days soon", "expires-in-days"),
        ("issue_key acme --scope both", "scope"),
        ("change_key nothing --name x", "no key 'nothing'"),
        ("change_key KEY", "Say what to change"),
        ("rotate_key KEY --overlap-hours 721", "30 days"),
        ("rotate_key KEY --overlap-hours nan", "30 days"),
        ("rotate_key KEY --overlap-hours -1", "30 days"),
        ("revoke_key nothing", "no key 'nothing'"),
        ("issue_operator_key ops --expires-in-days 0", "expires-in-days"),
        ("revoke_operator_key nobody", "no operator key"),
    ],
)
def test_failures_are_one_sentence(command: str, words: str, world: Any) -> None:
    actor = world.actor("acme")
    with pytest.raises(CommandError, match=words) as failed:
        call_command(*shlex.split(command.replace("KEY", actor.key.public_id)))
    assert "\n" not in str(failed.value).strip() or "argument" in str(failed.value)


@pytest.mark.parametrize("command", ["revoke_key", "rotate_key", "show_limits acme --key"])
def test_a_mistyped_key_is_not_repeated(command: str, world: Any) -> None:
    whole = issue(world)
    with pytest.raises(CommandError, match="no key by this text") as failed:
        call_command(*command.split(), f"{whole[:-1]}{'a' if whole[-1] != 'a' else 'b'}")
    assert whole[20:40] not in str(failed.value)


def issue(world: Any) -> str:
    """A whole key of acme's."""
    world.actor("acme")
    return str(run("issue_key", "acme")["api_key"])


def test_operator_keys(world: Any) -> None:
    issued = run("issue_operator_key", "dashboard", "--expires-in-days", "30")
    assert operator_of_key(issued["api_key"], None).actor.name == "dashboard"
    with pytest.raises(CommandError, match="'dashboard'"):
        call_command("issue_operator_key", "dashboard")
    (listed,) = run("operator_keys")["keys"]
    assert (listed["name"], listed["revoked_at"]) == ("dashboard", None)
    first = run("revoke_operator_key", "dashboard")
    assert run("revoke_operator_key", issued["public_id"]) == first
    with pytest.raises(InvalidKey):
        operator_of_key(issued["api_key"], None)
    assert entry("dashboard", "operator_key.revoked").tenant is None
    assert issued["api_key"] not in str(entry("dashboard", "operator_key.issued").after)


# Peppers --------------------------------------------------------------------------------------------------------------


def needed() -> dict[int, tuple[int, int]]:
    return {pepper["version"]: (pepper["keys"], pepper["operator_keys"]) for pepper in run("peppers")["peppers"]}


async def test_a_used_key_goes_over_to_the_newest_pepper(world: Any, db_pool: Pool, settings: Any) -> None:
    settings.KEY_PEPPERS = {1: b"a" * 32}
    actor = await sync_to_async(world.actor)("acme")

    def others() -> tuple[str, str]:
        _, manage = ApiKey.issue(actor.tenant, scope="manage")
        _, operator = OperatorKey.issue("ops")
        expired, _ = ApiKey.issue(actor.tenant)
        ApiKey.objects.filter(tenant=actor.tenant, pk=expired.pk).update(
            expires_at=timezone.now() - timedelta(seconds=1)
        )
        return manage.reveal(), operator.reveal()

    manage, operator = await sync_to_async(others)()
    settings.KEY_PEPPERS = {1: b"a" * 32, 2: b"b" * 32}
    result = await sync_to_async(run)("peppers")
    assert result["newest"] == 2
    assert await sync_to_async(needed)() == {2: (0, 0), 1: (2, 1)}, "the expired key needs none"
    assert {key["public_id"] for key in result["behind"]} >= {actor.key.public_id}

    await authenticate(db_pool, actor.secret)
    assert await sync_to_async(needed)() == {2: (1, 0), 1: (1, 1)}
    await sync_to_async(caller_of_key)(manage, None)
    await sync_to_async(operator_of_key)(operator, None)
    assert await sync_to_async(needed)() == {2: (2, 1), 1: (0, 0)}
    assert (await sync_to_async(run)("peppers"))["behind"] == []

    settings.KEY_PEPPERS = {2: b"b" * 32}
    assert (await authenticate(db_pool, actor.secret)).key_id == actor.key.pk
    await sync_to_async(caller_of_key)(manage, None)
    with pytest.raises(InvalidKey):
        await authenticate(db_pool, keys.generate().secret.reveal())


def test_a_pepper_that_is_gone_is_an_error(world: Any, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.KEY_PEPPERS = {1: b"a" * 32}
    world.actor("acme")
    settings.KEY_PEPPERS = {2: b"b" * 32}
    with pytest.raises(CommandError, match="lacks versions that keys need: 1"):
        call_command("peppers")
    assert "NOT CONFIGURED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        *("issue_key", "change_key", "rotate_key", "revoke_key", "keys", "peppers"),
        *("issue_operator_key", "revoke_operator_key", "operator_keys"),
    ],
)
def test_the_example_parses(name: str) -> None:
    command = load_command_class("tenants", name)
    command.create_parser("manage.py", name).parse_args(shlex.split(command.example)[2:])


def test_the_limits_of_a_key_that_has_ended_stay(world: Any) -> None:
    public_id = world.actor("acme").key.public_id
    run("revoke_key", public_id)
    for name, option in (("set_limits", "--max-concurrent"), ("budget", "--budget-hard")):
        with pytest.raises(CommandError, match="revoked"):
            call_command(name, "acme", "--key", public_id, option, "3")
    with pytest.raises(CommandError, match="revoked"):
        call_command("set_limits", "acme", "--key", public_id, "--models", "llama-tiny")
    assert run("show_limits", "acme", "--key", public_id)["restrictions"]["key"] is None


def test_commands_on_two_keys_of_a_line_wait_for_each_other(world: Any) -> None:
    actor = world.actor("acme")
    second, _ = key_ring.rotate(caller_of_command(actor.tenant), actor.key)

    def twenty(public_id: str) -> None:
        for number in range(1, 21):
            run("set_limits", "acme", "--key", public_id, "--tokens-per-day", str(number), "--models", "llama-tiny")
            run("budget", "acme", "--key", public_id, "--budget-hard", str(number))
            run("set_limits", "acme", "--key", public_id, "--models", "all")

    assert at_once(lambda: twenty(actor.key.public_id), lambda: twenty(second.public_id)) == [None, None]
    keys_of_line = ApiKey.objects.filter(tenant=actor.tenant, line=actor.key.line)
    assert set(keys_of_line.values_list("tokens_per_day", "budget_hard", "only_models")) == {(20, 20, None)}
