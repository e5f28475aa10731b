"""Management commands: what --json says, that failures are one sentence, and help with an example."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.db import connection
from django.utils import timezone

from tenants import keys, tasks
from tenants.admission import admit
from tenants.db import open_pool
from tenants.models import ApiKey, AuditEntry, BaseModel, Denial, InferenceRequest, LedgerEntry, Limits, Tenant
from tenants.settlement import settle


def run(*arguments: str, app: str = "tenants") -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    result: dict[str, Any] = json.loads(out.getvalue())
    words = io.StringIO()
    command = load_command_class(app, arguments[0])
    words.write(command.describe(result))
    assert words.getvalue().strip()
    return result


def test_create_issue_revoke(world: Any) -> None:
    made = run("create_tenant", "acme", "--display-name", "Acme Ltd")
    assert (made["tenant"], made["plan"], made["models"]) == ("acme", "standard", ["llama-tiny"])
    assert made["limits"]["requests_per_minute"] == 600
    assert run("create_tenant", "--name", "bare", "--no-models")["models"] == []
    issued = run("issue_key", "--tenant", "acme", "--name", "laptop", "--expires-in-days", "2")
    assert keys.parse(issued["api_key"]).public_id == issued["public_id"]
    key = ApiKey.objects.get(tenant__slug="acme")
    assert keys.matches(keys.Secret(issued["api_key"]), bytes(key.digest), key.pepper_version)
    assert key.expires_at is not None
    revoked = run("revoke_key", issued["public_id"])
    assert run("revoke_key", issued["api_key"])["revoked_at"] == revoked["revoked_at"], "the first time counts"


def test_set_limits(world: Any) -> None:
    run("create_tenant", "acme")
    changed = run("set_limits", "acme", "--requests-per-minute", "5", "--max-input-tokens", "70")
    set_ones = {"requests_per_minute": 5, "max_concurrent": 64, "max_input_tokens": 70}
    assert changed["limits"] == dict.fromkeys(Limits.NAMES) | set_ones
    back = run("set_limits", "--tenant", "acme", "--requests-per-minute", "none")
    assert back["limits"]["requests_per_minute"] == 600
    assert back["own"] == dict.fromkeys(Limits.NAMES) | {"max_input_tokens": 70}


def test_limits_of_keys_members_and_plans(world: Any) -> None:
    actor = world.actor("acme", member_limits={}, requests_per_minute=9)
    world.adapter(actor.tenant, "pirate")
    public_id, username = actor.key.public_id, actor.key.member.user.username
    done = run(
        "set_limits", "acme", "--key", public_id, "--tokens-per-day", "100", "--models", "acme/pirate,llama-tiny"
    )
    assert (done["subject"], done["limits"]["tokens_per_day"]) == (f"key:{actor.key.pk}", 100)
    actor.key.refresh_from_db()
    assert (len(actor.key.only_models), len(actor.key.only_adapters)) == (1, 1)
    assert done["only_models"] == ["llama-tiny", "acme/pirate"]
    shown = run("show_limits", "acme", "--key", public_id)
    assert (shown["key"], shown["member"]) == (public_id, username)
    assert shown["restrictions"] == {"member": None, "key": ["llama-tiny", "acme/pirate"]}
    words = load_command_class("tenants", "show_limits").describe(shown)
    assert f"key {public_id} may use only llama-tiny, acme/pirate." in words
    assert f"\nkey {public_id} " in words, "and its limits are under the same name"
    for names, says in (("", "names no model"), (" , ", "names no model"), ("none", "--models all")):
        with pytest.raises(CommandError, match=says):
            call_command("set_limits", "acme", "--key", public_id, "--models", names)
    run("set_limits", "acme", "--key", public_id, "--models", "all")
    actor.key.refresh_from_db()
    assert actor.key.only_models is None
    run("set_limits", "acme", "--member", username, "--max-concurrent", "3")
    shown = run("show_limits", "acme", "--key", public_id)["subjects"]
    assert [list(subject["limits"]) for subject in shown] == [
        ["requests_per_minute"],
        ["max_concurrent"],
        ["tokens_per_day"],
    ]
    assert shown[2]["limits"]["tokens_per_day"] == {"limit": 100, "used": 0, "left": 100}
    made = run("set_plan", "small", "--requests-per-minute", "3")
    assert (made["created"], made["limits"]["requests_per_minute"]) == (True, 3)
    assert not run("set_plan", "small", "--tokens-per-month", "7")["created"]
    moved = run("set_limits", "acme", "--plan", "small")["limits"]
    assert (moved["requests_per_minute"], moved["tokens_per_month"]) == (9, 7)


def test_prices_and_budgets(world: Any) -> None:
    actor = world.actor("acme")
    assert run("prices")["prices"] == []
    run("set_price", "llama-tiny", "--input", "10", "--output", "30")
    dearer = run("set_price", "llama-tiny", "--input", "20", "--cached-input", "5", "--output", "40")
    run("set_price", "llama-tiny", "--input", "1", "--output", "1", "--from", "2100-01-01T00:00:00Z")
    run("set_price", "llama-tiny", "--input", "2", "--output", "2", "--plan", world.plan.name)
    listed = run("prices", "--model", "llama-tiny")["prices"]
    assert [(row["input"], row["cached_input"]) for row in listed if row["in_force"]] == [(2, 2), (20, 5)]
    assert len(listed) == 4
    assert dearer["cached_input"] == 5
    budget = run("budget", "acme", "--budget-hard", "500", "--budget-soft", "0")
    assert (budget["hard"], budget["left"], budget["over_soft"], budget["committed"]) == (500, 500, True, 0)
    assert run("budget", "acme", "--key", actor.key.public_id)["hard"] is None
    assert run("budget", "acme", "--budget-hard", "none")["left"] is None


def test_books_and_refusals(world: Any) -> None:
    actor = world.actor("acme")
    assert run("reconcile")["ok"]
    assert run("reconcile", "--tenant", "acme", "--repair")["requests"] == 0
    assert run("reconcile", "acme")["requests"] == 0
    assert run("rollup") == {"rebuilt": False, "hours": 0}
    assert run("rollup", "--all")["rows"] == 0
    assert run("denials", "acme") == {"tenant": "acme", "refused": 0, "denials": []}
    now = timezone.now()
    Denial.objects.create(
        tenant=actor.tenant,
        key=actor.key,
        hour=now,
        code="rate_limit_exceeded",
        limit="requests_per_minute",
        subject="key",
        count=4,
        last_at=now,
        last_request_id=uuid4(),
        last_model="llama-tiny",
        last_message="Used up.",
    )
    [row] = run("denials", "acme", "--hours", "1")["denials"]
    assert (row["count"], row["key"], row["limit"]) == (4, actor.key.public_id, "requests_per_minute")


def test_allowances(world: Any) -> None:
    owner, friend = world.actor("acme"), world.actor("globex", allow=False)
    world.adapter(owner.tenant, "pirate")
    shared = run("allow_adapter", "--tenant", "globex", "--adapter", "acme/pirate")
    assert (shared["allowed"], shared["base_model_allowed"]) == (True, False)
    assert run("allow_model", "--tenant", "globex", "--model", "llama-tiny")["allowed"]
    assert run("allow_adapter", "--tenant", "globex", "--adapter", "acme/pirate")["base_model_allowed"]
    assert friend.tenant.adapter_allowances.count() == 1
    run("allow_adapter", "--tenant", "globex", "--adapter", "acme/pirate", "--remove")
    run("allow_model", "--tenant", "globex", "--model", "llama-tiny", "--remove")
    assert friend.tenant.adapter_allowances.count() == friend.tenant.model_allowances.count() == 0


def test_register_model(world: Any, tiny_model_dir: Path) -> None:
    made = run("register_model", "--directory", str(tiny_model_dir), "--name", "tiny")
    assert made["created"]
    assert made["fingerprint"] == (tiny_model_dir / "fingerprint").read_text().strip()
    again = run("register_model", "--directory", str(tiny_model_dir), "--name", "tiny", "--context-length", "64")
    assert (again["created"], again["context_length"]) == (False, 64)
    as_up_does = run("register_model", "--directory", str(tiny_model_dir), "--name", "tiny", "--replace")
    assert as_up_does["context_length"] == 64, "nobody said otherwise"
    own = str(made["context_length"])
    BaseModel.objects.filter(name="tiny").update(config={})  # as of a row that something else made
    run("register_model", "--directory", str(tiny_model_dir), "--name", "tiny")
    back = run("register_model", "--directory", str(tiny_model_dir), "--name", "tiny", "--context-length", own)
    assert back["context_length"] == made["context_length"] > 64


def test_a_tenants_life(world: Any) -> None:
    world.actor("acme")
    run("create_tenant", "globex", "--display-name", "Globex")
    run("set_plan", "large", "--max-concurrent", "9")
    changed = run("change_tenant", "globex", "--plan", "large", "--weight", "3", "--display-name", "Globex Ltd")
    assert (changed["plan"], changed["weight"], changed["display_name"]) == ("large", 3, "Globex Ltd")
    assert run("suspend_tenant", "globex", "--reason", "unpaid")["state"] == "suspended"
    assert [row["tenant"] for row in run("tenants", "--state", "suspended")["tenants"]] == ["globex"]
    assert run("resume_tenant", "globex")["state"] == "active"
    assert [row["tenant"] for row in run("tenants", "--search", "globex l")["tenants"]] == ["globex"]
    assert {row["plan"]: row["tenants"] for row in run("plans")["plans"]}["large"] == 1
    with pytest.raises(CommandError, match=r"has 1 tenant\."):
        call_command("delete_plan", "large")
    assert run("delete_tenant", "globex")["deleted"]
    assert run("delete_plan", "large")["deleted"]
    entries = AuditEntry.objects.unscoped().order_by("id")
    assert {entry.actor_kind for entry in entries} == {"command"}
    assert [entry.action for entry in entries if entry.subject == "globex"] == [
        "tenant.created", "tenant.changed", "tenant.suspended", "tenant.resumed", "tenant.deleted",
    ]  # fmt: skip


def test_models_and_what_was_looked_at(world: Any) -> None:
    assert run("retire_model", "llama-tiny")["state"] == "retired"
    assert [row["state"] for row in run("models")["models"]] == ["retired"]
    assert run("retire_model", "llama-tiny", "--undo")["state"] == "active"
    assert tasks.reconcile()
    (row,) = run("reconciliations")["reconciliations"]
    assert (row["ok"], row["asked_by"]) == (True, "system reconcile")
    assert run("overview", app="fleet")["alerts"][0]["code"] == "model_unserved"
    assert run("workers", app="fleet") == {"workers": []}


@pytest.mark.usefixtures("grant_keys")
def test_usage_and_reap(world: Any) -> None:
    actor = world.actor("acme")
    adapter = world.adapter(actor.tenant, "pirate")

    async def requests() -> None:
        async with open_pool(min_size=1, max_size=1) as pool:
            for model, outcome in ((None, "completed"), (adapter, "completed"), (adapter, "failed"), (adapter, None)):
                request_id = uuid4()
                await admit(
                    pool,
                    request_id=request_id,
                    access=actor.access(),
                    model=world.served(model),
                    prompt_tokens=10,
                    max_tokens=9,
                )
                if outcome:
                    await settle(
                        pool,
                        request_id=request_id,
                        prompt_tokens=10,
                        cached_tokens=4,
                        completion_tokens=3,
                        outcome=outcome,  # type: ignore[arg-type]
                        finish_reason=None,
                    )

    asyncio.run(requests())
    used = run("usage", "acme", "--days", "1")
    assert {name: used[name] for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")} == {
        "requests": 3,
        "prompt_tokens": 30,
        "cached_tokens": 12,
        "completion_tokens": 9,
    }
    assert (used["not_completed"], used["running"]) == (1, 1)
    assert [(row["model"], row["requests"]) for row in used["models"]] == [("acme/pirate", 2), ("llama-tiny", 1)]
    shown = run("requests", "--tenant", "acme")["requests"]
    assert sorted((row["model"], row["state"]) for row in shown) == [
        ("acme/pirate", "completed"),
        ("acme/pirate", "failed"),
        ("acme/pirate", "running"),
        ("llama-tiny", "completed"),
    ]
    assert run("requests", "acme")["requests"] == shown
    assert len(run("requests", "--running")["requests"]) == 1
    ledger = run("ledger", "acme")
    assert sorted((row["model"], row["kind"], row["outcome"]) for row in ledger["entries"]) == [
        ("acme/pirate", "settle", "completed"),
        ("acme/pirate", "settle", "failed"),
        ("llama-tiny", "settle", "completed"),
    ]
    pages = [run("ledger", "acme", "--most", "2")]
    pages.append(run("ledger", "acme", "--after", pages[0]["entries"][-1]["request"]))
    assert pages[0]["entries"] + pages[1]["entries"] == ledger["entries"]
    assert [page["more"] for page in pages] == [True, False]
    assert len(run("ledger", "acme", "--model", "acme/pirate", "--key", actor.key.public_id)["entries"]) == 2
    world.actor("globex")
    assert run("ledger", "globex")["entries"] == []
    assert run("reap") == {"settled": 0}
    InferenceRequest.objects.unscoped().filter(state="running").update(lease_expires_at="2000-01-01T00:00:00Z")
    assert tasks.reap() == 1
    assert LedgerEntry.objects.filter(tenant=actor.tenant).count() == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create_tenant",), "name"),
        (("create_tenant", "a", "--name", "b"), "Two different"),
        (("create_tenant", "acme"), "already"),
        (("create_tenant", "Bad Name"), "name: lower-case letters"),
        (("create_tenant", "new", "--display-name", "two\nlines"), "--display-name has to be"),
        (("create_tenant", "new", "--plan", "none-such"), "plan"),
        (("issue_key", "nobody"), "no tenant 'nobody'"),
        (("issue_key", "acme", "--expires-in-days", "0"), "expires-in-days"),
        (("revoke_key", "nothing"), "no key 'nothing'"),
        (("set_limits", "acme"), "--requests-per-minute"),
        (("set_limits", "acme", "--max-concurrent", "0"), "between 1 and"),
        (("set_limits", "acme", "--max-concurrent", "many"), "a whole number, or none; not 'many'"),
        (("set_limits", "acme", "--key", "nothing", "--max-concurrent", "1"), "no key 'nothing'"),
        (("set_limits", "acme", "--member", "nobody", "--max-concurrent", "1"), "no member 'nobody'"),
        (("set_limits", "acme", "--models", "all"), "allow_model"),
        (("set_limits", "acme", "--tokens-per-day", str(2**63)), "between 1 and"),
        (("set_plan", "Bad Name"), "letters, digits, hyphens and underscores, unlike 'Bad Name'"),
        (("set_plan", "small", "--budget-soft", "2", "--budget-hard", "1"), "budget_soft would be 2"),
        (("set_limits", "acme", "--budget-soft", "2", "--budget-hard", "1"), "budget_soft would be 2"),
        (("budget", "acme", "--budget-soft", "2", "--budget-hard", "1"), "budget_soft would be 2"),
        (("set_price", "llama-tiny", "--input", "-1", "--output", "1"), "input"),
        (("set_price", "llama-tiny", "--input", "1", "--cached-input", "2", "--output", "1"), "cached_input"),
        (("set_price", "llama-tiny", "--input", "1", "--output", "1", "--from", "yesterday"), "zone"),
        (("set_price", "llama-tiny", "--input", "1", "--output", "1", "--from", "2000-01-01T00:00:00Z"), "past"),
        (("prices", "--model", "gpt"), "llama-tiny"),
        (("denials", "acme", "--hours", "0"), "--hours"),
        (("rollup", "--since", "then"), "--since"),
        (("reconcile", "--tenant", "nobody"), "no tenant"),
        (("allow_adapter", "--tenant", "acme", "--adapter", "x"), "owner/name"),
        (("allow_adapter", "--tenant", "acme", "--adapter", "acme/x"), "no adapter 'acme/x'"),
        (("declare_public_prefix", "p", "--model", "llama-tiny", "--prompt", "x", "--adapter", "x"), "owner/name"),
        (("declare_public_prefix", "p", "--model", "llama-tiny", "--prompt", "x", "--adapter", "a/x"), "'a/x'"),
        (("allow_model", "--tenant", "acme", "--model", "gpt"), "llama-tiny"),
        (("add_adapter", "--tenant", "acme", "--name", "x", "--path", "/nowhere"), "--path /nowhere"),
        (("register_model", "--directory", "/nowhere"), "--directory /nowhere does not exist"),
        (("register_model", "/"), "python -m inference.model_store / "),
        (("usage", "acme", "--days", "-1"), "--days"),
        (("change_tenant", "acme"), "--display-name"),
        (("change_tenant", "acme", "--weight", "0"), "weight"),
        (("change_tenant", "acme", "--plan", "none-such"), "plan"),
        (("suspend_tenant", "nobody"), "no tenant 'nobody'"),
        (("delete_plan", "none-such"), "plan"),
        (("retire_model", "gpt"), "llama-tiny"),
        (("requests", "--last", "0"), "--last"),
        (("ledger", "acme", "--most", "0"), "--most"),
        (("ledger", "acme", "--after", "x"), "--after: there is nothing"),
        (("ledger", "acme", "--key", "none-such"), "no key"),
        (("requests", "--tenant", "nobody"), "no tenant"),
        (("requests", "nobody"), "no tenant"),
        (("requests", "acme", "--tenant", "globex"), "Two different"),
        (("reconcile", "--tenant", ""), "no tenant ''"),
        (("audit", "nobody"), "no tenant"),
        (("reconciliations", "--last", "0"), "--last"),
        (("overview", "--hours", "0"), "--hours"),
        (("drain_worker", "none-such"), "worker"),
        (("remove_worker", "none-such"), "worker"),
    ],
)
def test_failures_are_one_sentence(arguments: tuple[str, ...], says: str, world: Any) -> None:
    world.actor("acme")
    with pytest.raises(CommandError) as caught:
        call_command(*arguments)
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert Tenant.objects.count() == 1


def test_the_admission_queries_use_their_indexes(world: Any) -> None:
    """At a size where the planner has a choice."""
    actor = world.actor("acme")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_inferencerequest (id, tenant_id, key_id, base_model_id, state, prompt_tokens,"
            " max_tokens, held_cost, emitted_tokens, admitted_at, lease_expires_at)"
            " SELECT gen_random_uuid(), %s, %s, %s, 'settled', 1, 1, 0, 0, now(), now() FROM generate_series(1, 20000)",
            (actor.tenant.pk, actor.key.pk, world.base.pk),
        )
        cursor.execute("ANALYZE tenants_inferencerequest")
        for query in (
            f"SELECT count(*) FROM tenants_inferencerequest r WHERE r.tenant_id = '{actor.tenant.pk}'"
            " AND r.state = 'running' AND r.lease_expires_at > now()",
            "SELECT id FROM tenants_inferencerequest WHERE state = 'running' AND lease_expires_at <= now()"
            " ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED",
        ):
            cursor.execute(f"EXPLAIN {query}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "request_running" in plan, plan
