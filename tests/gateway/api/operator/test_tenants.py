"""Tenants, plans, prices, base models and allowlists, as operators have them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gateway.api.operator.limits import LimitsBody
from tenants.limits import names_for
from tenants.models import (
    Adapter,
    ApiKey,
    AuditEntry,
    BaseModel,
    InferenceRequest,
    Member,
    Plan,
    Price,
    Tenant,
)
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

TENANTS = "/api/operator/tenants"


@pytest.fixture
def base(db: None) -> BaseModel:
    return BaseModel.objects.create(name="m", fingerprint="f" * 64, directory="/m", context_length=9)


def last(action: str) -> AuditEntry:
    entry: AuditEntry = AuditEntry.objects.unscoped().latest("id")
    assert entry.action == action
    return entry


def many(count: int) -> None:
    plan, _ = Plan.objects.get_or_create(name="tests")
    for n in range(count):
        tenant = Tenant.objects.create(slug=f"t{n:03}", display_name=f"T {n}", plan=plan)
        ApiKey.issue(tenant)


def queries(operator: Caller, path: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as seen:
        answer = operator.get(path)
    assert answer.status_code == 200, answer.content
    return len(seen)


def running(tenant: Tenant, base: BaseModel) -> InferenceRequest:
    key, _ = ApiKey.issue(tenant)
    now = timezone.now()
    return InferenceRequest.objects.create(
        tenant=tenant,
        key=key,
        base_model=base,
        prompt_tokens=5,
        max_tokens=5,
        admitted_at=now,
        lease_expires_at=now + timedelta(hours=1),
    )


# Tenants --------------------------------------------------------------------------------------------------------------


def test_a_tenant_is_created_with_what_was_asked_for(operator: Caller, base: BaseModel) -> None:
    body = {
        "slug": "acme",
        "display_name": "Acme Ltd",
        "weight": 3,
        "models": ["m"],
        "limits": {"requests_per_minute": 7, "tokens_per_day": None},
    }
    answer = operator.post(TENANTS, body)
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["plan"], made["weight"], made["models"], made["keys"]) == ("standard", 3, ["m"], 0)
    assert made["limits"]["requests_per_minute"] == made["own_limits"]["requests_per_minute"] == 7
    assert made["limits"]["max_concurrent"] == 64, "the plan's"
    assert made["remaining"]["requests_per_minute"] == {"limit": 7, "used": 0, "left": 7}
    created, limited = AuditEntry.objects.filter(tenant__slug="acme").order_by("id")
    assert (created.action, created.actor_kind, created.actor_name) == ("tenant.created", "operator", "tests")
    assert (limited.action, limited.after) == ("tenant.limits_changed", {"requests_per_minute": 7})
    assert operator.get(f"{TENANTS}/acme").json() == made


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "slug"),
        ({"slug": 5}, "slug"),
        ({"slug": "Not a slug"}, "slug"),
        ({"slug": "a\0"}, "slug"),
        ({"slug": "a" * 64}, "slug"),
        ({"slug": "a", "display_name": "x" * 201}, "display_name"),
        ({"slug": "a", "display_name": "a\0b"}, "display_name"),
        ({"slug": "a", "plan": "none-such"}, "plan"),
        ({"slug": "a", "models": ["none-such"]}, "models"),
        ({"slug": "a", "weight": 0}, "weight"),
        ({"slug": "a", "weight": "3"}, "weight"),
        ({"slug": "a", "limits": {"requests_per_minute": 0}}, "limits.requests_per_minute"),
        ({"slug": "a", "limits": {"requests_per_minute": 2**31}}, "limits.requests_per_minute"),
        ({"slug": "a", "limits": {"no_such": 1}}, "limits.no_such"),
        ({"slug": "a", "limits": {"budget_soft": 2, "budget_hard": 1}}, "budget_soft"),
        ({"slug": "a", "sulg": "b"}, "sulg"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(operator: Caller, body: dict[str, Any], param: str) -> None:
    assert error(operator.post(TENANTS, body), 400)["param"] == param
    assert not Tenant.objects.exists()


def test_a_slug_is_taken_once(operator: Caller, tenant: Tenant) -> None:
    assert error(operator.post(TENANTS, {"slug": "acme"}), 409) == {
        "message": "There is a tenant 'acme' already.", "type": "invalid_request_error", "param": "slug",
        "code": "name_taken",
    }  # fmt: skip


def test_a_repeated_creation_happens_once(operator: Caller) -> None:
    first = operator.post(TENANTS, {"slug": "acme"}, **{"Idempotency-Key": "k"})
    again = operator.post(TENANTS, {"slug": "acme"}, **{"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (201, 201, "true")
    assert Tenant.objects.count() == 1


def test_a_change_changes_what_is_named(operator: Caller, tenant: Tenant) -> None:
    Plan.objects.create(name="large", budget_hard=10)
    answer = operator.patch(f"{TENANTS}/acme", {"plan": "large", "limits": {"max_adapters": 2, "budget_soft": 10}})
    changed = answer.json()
    assert (changed["plan"], changed["display_name"], changed["own_limits"]["max_adapters"]) == ("large", "Acme", 2)
    limited, quotas, moved = AuditEntry.objects.filter(tenant=tenant)
    assert (moved.before, moved.after) == ({"plan": "tests"}, {"plan": "large"})
    assert (quotas.action, quotas.before, quotas.after) == (
        "tenant.adapter_quotas_set", {"max_adapters": None}, {"max_adapters": 2},
    )  # fmt: skip
    assert (limited.before, limited.after) == ({"budget_soft": None}, {"budget_soft": 10})
    assert error(operator.patch(f"{TENANTS}/acme", {"limits": {"budget_soft": 11}}), 400)["param"] == "budget_soft"
    assert (
        operator.patch(f"{TENANTS}/acme", {"limits": {"max_adapters": None}}).json()["own_limits"]["max_adapters"]
        is None
    )
    before = AuditEntry.objects.filter(tenant=tenant).count()
    operator.patch(f"{TENANTS}/acme", {"plan": "large", "limits": {"max_adapters": None}})
    assert AuditEntry.objects.filter(tenant=tenant).count() == before, "nothing changed"


def test_a_plan_whose_budget_is_below_the_tenants_warning_is_refused(operator: Caller, tenant: Tenant) -> None:
    Tenant.objects.update(budget_soft=20)
    Plan.objects.create(name="small", budget_hard=10)
    assert error(operator.patch(f"{TENANTS}/acme", {"plan": "small"}), 400)["param"] == "budget_soft"
    tenant.refresh_from_db()
    assert tenant.plan.name == "tests"


def test_suspending_and_resuming(operator: Caller, tenant: Tenant, caller: Make) -> None:
    key = caller()
    assert operator.post(f"{TENANTS}/acme/suspend", {"reason": "unpaid"}).json()["state"] == "suspended"
    assert last("tenant.suspended").after == {"state": "suspended", "reason": "unpaid"}
    assert key.get("/api/audit").status_code == 403
    assert operator.get(f"{TENANTS}/acme/audit").status_code == 200, "operators still reach what it has"
    assert operator.post(f"{TENANTS}/acme/resume").json()["state"] == "active"
    assert key.get("/api/audit").status_code == 200
    count = AuditEntry.objects.filter(tenant=tenant).count()
    operator.post(f"{TENANTS}/acme/resume")
    assert AuditEntry.objects.filter(tenant=tenant).count() == count


def test_only_a_tenant_without_requests_can_be_deleted(
    operator: Caller, tenant: Tenant, base: BaseModel, caller: Make
) -> None:
    caller("owner")
    request = running(tenant, base)
    refused = error(operator.delete(f"{TENANTS}/acme"), 409)
    assert (refused["code"], "only be suspended" in refused["message"]) == ("tenant_in_use", True)
    assert "1 inference request:" in refused["message"]
    assert (Member.objects.filter(tenant=tenant).count(), AuditEntry.objects.filter(tenant=tenant).count()) == (1, 0)
    with connection.cursor() as cursor:  # as if it had never been: the database lets nobody remove one
        cursor.execute("SET session_replication_role = replica")
        request.delete()
        cursor.execute("SET session_replication_role = origin")
    assert operator.delete(f"{TENANTS}/acme").status_code == 204
    assert not Tenant.objects.exists()
    assert operator.get(f"{TENANTS}/acme").status_code == 404
    gone = operator.get("/api/operator/audit").json()["data"][0]
    assert (gone["action"], gone["subject"], gone["tenant"]) == ("tenant.deleted", "acme", None)
    connection.check_constraints()


def test_a_tenant_with_adapters_is_kept(operator: Caller, tenant: Tenant, base: BaseModel) -> None:
    Adapter.objects.create(tenant=tenant, name="pirate", base_model=base)
    assert "1 adapter:" in error(operator.delete(f"{TENANTS}/acme"), 409)["message"]


def test_the_list_is_filtered_and_paged(operator: Caller) -> None:
    many(5)
    Tenant.objects.filter(slug="t003").update(state="suspended")
    found = operator.get(f"{TENANTS}?limit=2&after=t001").json()
    assert ([row["slug"] for row in found["data"]], found["has_more"]) == (["t002", "t003"], True)
    assert [row["slug"] for row in operator.get(f"{TENANTS}?state=suspended").json()["data"]] == ["t003"]
    assert [row["slug"] for row in operator.get(f"{TENANTS}?search=T%204").json()["data"]] == ["t004"]
    assert operator.get(f"{TENANTS}?plan=none-such").json()["data"] == []
    assert error(operator.get(f"{TENANTS}?state=gone"), 400)["param"] == "state"


def test_the_list_says_what_runs(operator: Caller, tenant: Tenant, base: BaseModel) -> None:
    running(tenant, base)
    (row,) = operator.get(TENANTS).json()["data"]
    assert (row["running"], row["month_tokens"]) == (1, 0)


@pytest.mark.parametrize("method", ["get", "delete"])
@pytest.mark.parametrize("slug", ["none-such", "a%00b", "%C3%A9"])
def test_an_unknown_tenant_is_not_found(operator: Caller, method: str, slug: str) -> None:
    assert error(getattr(operator, method)(f"{TENANTS}/{slug}"), 404)["code"] == "not_found"


def test_every_limit_can_be_set() -> None:
    assert set(LimitsBody.model_fields) == set(names_for(Tenant)) == set(names_for(Plan))


# Acting for a tenant --------------------------------------------------------------------------------------------------


def test_an_operator_issues_a_key_for_a_tenant(operator: Caller, tenant: Tenant) -> None:
    made = operator.post(f"{TENANTS}/acme/keys", {"name": "from support"})
    assert made.status_code == 201, made.content
    entry = last("key.issued")
    assert (entry.tenant, entry.actor_kind, entry.actor_name) == (tenant, "operator", "tests")
    assert ApiKey.objects.filter(tenant=tenant).count() == 1
    assert len(operator.get(f"{TENANTS}/acme/keys").json()["data"]) == 1


def test_acting_for_an_unknown_tenant(operator: Caller, db: None) -> None:
    assert error(operator.get(f"{TENANTS}/none-such/keys"), 404)["code"] == "not_found"


def test_everything_a_manage_key_opens_an_operator_may_do() -> None:
    from gateway.api import api
    from gateway.api.callers import TenantKey

    own: set[tuple[str, str]] = set()
    mounted: set[tuple[str, str]] = set()
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                doors = {type(door) for door in operation.auth_callbacks}
                names = {(method, path) for method in operation.methods}
                if TenantKey in doors and path.startswith("/api/"):
                    own |= names
                if path.startswith(f"{TENANTS}/{{tenant}}/"):
                    mounted |= {(method, path.replace(f"{TENANTS}/{{tenant}}/", "/api/")) for method, path in names}
    assert own
    assert own <= mounted


# Plans, prices, base models, allowlists -------------------------------------------------------------------------------


def test_plans_are_made_changed_and_deleted(operator: Caller, tenant: Tenant) -> None:
    made = operator.post("/api/operator/plans", {"name": "small", "limits": {"requests_per_minute": 6}})
    assert (made.status_code, made.json()["tenants"]) == (201, 0)
    assert error(operator.post("/api/operator/plans", {"name": "small"}), 409)["code"] == "name_taken"
    assert error(operator.post("/api/operator/plans", {"name": "no spaces"}), 400)["param"] == "name"
    changed = operator.patch("/api/operator/plans/small", {"limits": {"max_concurrent": 2}}).json()
    assert (changed["limits"]["requests_per_minute"], changed["limits"]["max_concurrent"]) == (6, 2)
    assert (last("plan.limits_changed").subject, last("plan.limits_changed").tenant) == ("small", None)
    assert [plan["name"] for plan in operator.get("/api/operator/plans").json()["data"]] == ["small", "tests"]
    assert error(operator.delete("/api/operator/plans/tests"), 409)["code"] == "plan_in_use"
    assert operator.delete("/api/operator/plans/small").status_code == 204
    assert error(operator.get("/api/operator/plans/small"), 404)["code"] == "not_found"


def test_a_new_price_follows_the_last_one(operator: Caller, base: BaseModel) -> None:
    Plan.objects.create(name="large")
    path, body = "/api/operator/prices", {"model": "m", "input": 10, "output": 30}
    assert operator.post(path, body).json()["cached_input"] == 10
    assert operator.post(path, body | {"cached_input": 5}).json()["in_force"]
    later = (timezone.now() + timedelta(days=1)).isoformat()
    assert operator.post(path, body | {"valid_from": later}).json()["in_force"] is False
    assert operator.post(path, body | {"plan": "large"}).json()["plan"] == "large"
    rows = operator.get(path).json()["data"]
    assert [row["in_force"] for row in rows] == [True, False, True, False]
    assert len(operator.get(f"{path}?in_force=true").json()["data"]) == 2
    assert len(operator.get(f"{path}?plan=large&model=m").json()["data"]) == 1
    assert last("price.set").after["input"] == 10


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "none-such"}, "model"),
        ({"input": -1}, "input"),
        ({"output": 2**31}, "output"),
        ({"cached_input": 11}, "cached_input"),
        ({"plan": "none-such"}, "plan"),
        ({"valid_from": "2001-01-01T00:00:00Z"}, "valid_from"),
        ({"valid_from": "2099-01-01T00:00:00"}, "valid_from"),
        ({"valid_from": "soon"}, "valid_from"),
        ({"input": "10"}, "input"),
        ({"input": True}, "input"),
    ],
)
def test_prices_that_cannot_be(operator: Caller, base: BaseModel, body: dict[str, Any], param: str) -> None:
    asked = {"model": "m", "input": 10, "output": 30} | body
    assert error(operator.post("/api/operator/prices", asked), 400)["param"] == param
    assert not Price.objects.exists()


def test_a_retired_model_comes_back(operator: Caller, base: BaseModel) -> None:
    path = "/api/operator/models"
    (row,) = operator.get(path).json()["data"]
    assert (row["name"], row["state"], row["tenants"], row["workers"]) == ("m", "active", 0, 0)
    assert operator.patch(f"{path}/m", {"state": "retired"}).json()["state"] == "retired"
    assert last("model.retired").before == {"state": "active"}
    assert operator.patch(f"{path}/m", {"state": "active"}).json()["state"] == "active"
    assert error(operator.patch(f"{path}/m", {"state": "gone"}), 400)["param"] == "state"
    assert error(operator.get(f"{path}/none-such"), 404)["code"] == "not_found"


def test_allowlists(operator: Caller, tenant: Tenant, base: BaseModel, stranger: Caller) -> None:
    assert stranger.tenant is not None
    Adapter.objects.create(tenant=stranger.tenant, name="pirate", base_model=base)
    for path in ("models/m", "allowed-adapters/globex/pirate"):
        kind = path.partition("/")[0]
        for _ in range(2):
            assert operator.put(f"{TENANTS}/acme/{path}", {}).status_code == 200
        assert len(operator.get(f"{TENANTS}/acme/{kind}").json()["data"]) == 1
        assert operator.delete(f"{TENANTS}/acme/{path}").status_code == 204
        assert operator.get(f"{TENANTS}/acme/{kind}").json()["data"] == []
    assert [entry.action for entry in AuditEntry.objects.filter(tenant=tenant).order_by("id")] == [
        "model.allowed", "model.forbidden", "adapter.shared", "adapter.share_withdrawn",
    ]  # fmt: skip
    assert AuditEntry.objects.filter(tenant=stranger.tenant).count() == 2, "its owner's log says so too"
    own = f"{TENANTS}/globex/allowed-adapters/globex/pirate"
    assert error(operator.put(own, {}), 409)["param"] == "adapter"
    assert error(operator.put(f"{TENANTS}/acme/models/none", {}), 404)["code"] == "not_found"
    assert error(operator.put(f"{TENANTS}/acme/allowed-adapters/a/b", {}), 404)["code"] == "not_found"


# All lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["tenants", "plans", "prices", "models", "audit"])
def test_a_lists_queries_do_not_grow_with_it(path: str, operator: Caller, base: BaseModel) -> None:
    def add(count: int) -> None:
        start = Tenant.objects.count()
        for n in range(start, start + count):
            plan = Plan.objects.create(name=f"p{n}")
            model = BaseModel.objects.create(name=f"m{n}", fingerprint="f" * 64, directory="/", context_length=9)
            tenant = operator.post(TENANTS, {"slug": f"t{n}", "plan": f"p{n}", "models": [f"m{n}"]})
            assert tenant.status_code == 201, tenant.content
            Price.objects.create(
                base_model=model, plan=plan, input=1, cached_input=1, output=1, valid_from=timezone.now()
            )

    add(1)
    queries(operator, f"/api/operator/{path}")  # the key's last use is written once a minute
    few = queries(operator, f"/api/operator/{path}?limit=100")
    add(30)
    assert queries(operator, f"/api/operator/{path}?limit=100") == few
