"""The explorer of requests, the reasons of refusals, the limits as they stand: for the account's own people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone
from uuid6 import uuid7

from tenants.models import Account, ApiKey, Denial, InferenceRequest, Member, Price, Tenant
from tests.gateway.api import ledger
from tests.gateway.api.conftest import Caller, Make, _member
from tests.gateway.api.test_management import error

NOON = datetime(2030, 3, 10, 12, tzinfo=UTC)
NOBODYS = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return ApiKey.issue(tenant)[0]


def ids(caller: Caller, path: str) -> list[str]:
    answer = caller.get(path)
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["data"]]


# Requests -------------------------------------------------------------------------------------------------------------


def test_what_was_held_and_what_was_billed(caller: Make, tenant: Tenant, key: ApiKey) -> None:
    price = Price.objects.create(base_model=ledger.base_model(), input=3, cached_input=1, output=5, valid_from=NOON)
    version = ledger.adapter(tenant, "pirate")
    row = ledger.ended(key, NOON, version=version, price=price, after=timedelta(milliseconds=1234))
    InferenceRequest.objects.filter(tenant=tenant, pk=row.pk).update(first_token_ms=120, queue_ms=20)
    shown = caller().get(f"/api/requests/{row.pk}").json()
    assert shown == {
        "id": str(row.pk),
        "object": "request",
        "state": "completed",
        "model": "acme/pirate",
        "base_model": "tiny",
        "adapter_version": 1,
        "key": key.public_id,
        "member": None,
        "admitted_at": "2030-03-10T12:00:00Z",
        "ended_at": "2030-03-10T12:00:01.234Z",
        "duration_ms": 1234,
        "first_token_ms": 120,
        "queue_ms": 20,
        "prefill_ms": None,
        "emitted_tokens": 0,
        "held": {"prompt_tokens": 10, "max_tokens": 20, "cost": 30},
        "billed": {"kind": "settle", "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5, "cost": 7},
        "price": {"input": 3, "cached_input": 1, "output": 5},
        "finish_reason": "stop",
    }
    assert caller().get("/api/requests").json()["data"] == [shown]


def test_one_that_runs_and_one_whose_member_is_gone(caller: Make, tenant: Tenant, key: ApiKey) -> None:
    running = ledger.request(key, NOON)
    shown = caller().get(f"/api/requests/{running.pk}").json()
    assert (shown["state"], shown["billed"], shown["ended_at"], shown["duration_ms"]) == ("running", None, None, None)
    member = _member(tenant, "developer")
    theirs, _ = ApiKey.issue(tenant, member=member)
    row = ledger.ended(theirs, NOON)
    assert caller().get(f"/api/requests/{row.pk}").json()["member"] == str(member.public_id)
    ApiKey.objects.filter(tenant=tenant, pk=theirs.pk).update(member=None)
    Member.objects.filter(tenant=tenant, pk=member.pk).delete()
    assert caller().get(f"/api/requests/{row.pk}").json()["member"] is None


def test_filters(caller: Make, tenant: Tenant, key: ApiKey) -> None:
    member = _member(tenant, "developer")
    theirs, _ = ApiKey.issue(tenant, member=member)
    version = ledger.adapter(tenant, "pirate")
    a = str(ledger.ended(key, NOON).pk)
    b = str(ledger.ended(theirs, NOON + timedelta(hours=1), outcome="cancelled").pk)
    c = str(ledger.ended(key, NOON + timedelta(hours=2), version=version, outcome="failed").pk)
    d = str(ledger.request(key, NOON + timedelta(hours=3)).pk)
    owner = caller()
    for query, expected in {
        "": [d, c, b, a],
        "from=2030-03-10T13:00:00Z": [d, c, b],
        "to=2030-03-10T13:00:00Z": [a],
        "from=2030-03-10&to=2030-03-11": [d, c, b, a],
        "to=2030-03-10": [],
        f"key={theirs.public_id}": [b],
        f"member={member.public_id}": [b],
        "model=tiny": [d, b, a],
        "model=acme/pirate": [c],
        "model=globex/pirate": [],
        "state=running": [d],
        "state=completed": [a],
        "state=cancelled": [b],
        "state=failed": [c],
        "state=failed&model=tiny": [],
    }.items():
        assert ids(owner, f"/api/requests?{query}") == expected, query


def test_pages_give_each_once_also_those_of_one_moment(caller: Make, key: ApiKey) -> None:
    made = {str(ledger.ended(key, NOON + timedelta(seconds=n // 4)).pk) for n in range(11)}
    owner, found, after = caller(), [], ""
    for _ in range(4):
        page = owner.get(f"/api/requests?limit=3{after}").json()
        found += [row["id"] for row in page["data"]]
        after = f"&after={page['last_id']}"
    assert (len(found), set(found), page["has_more"]) == (11, made, False)


def test_a_stranger_finds_no_request(key: ApiKey, stranger: Caller) -> None:
    row = ledger.ended(key, NOON)
    theirs = error(stranger.get(f"/api/requests/{row.pk}"), 404)["message"].replace(str(row.pk), "")
    for nobodys in (NOBODYS, "x"):
        assert error(stranger.get(f"/api/requests/{nobodys}"), 404)["message"].replace(nobodys, "") == theirs
    assert ids(stranger, "/api/requests") == []
    assert ids(stranger, f"/api/requests?key={key.public_id}") == []
    assert error(stranger.get(f"/api/requests?after={row.pk}"), 400)["param"] == "after"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("from=yesterday", "from"),
        ("to=2030-01-01T00:00:00", "to"),
        ("state=lost", "state"),
        ("member=x", "member"),
        ("key=%00", "key"),
        ("model=%00", "model"),
        ("limit=101", "limit"),
        ("after=x", "after"),
    ],
)
def test_wrong_filters_are_named(query: str, param: str, caller: Make) -> None:
    assert error(caller().get(f"/api/requests?{query}"), 400)["param"] == param


def test_a_viewer_may_look_and_an_inference_key_may_not(caller: Make) -> None:
    for path in ("/api/requests", "/api/denials", "/api/limits"):
        assert caller("viewer").get(path).status_code == 200
        assert error(caller(scope="inference").get(path), 403)["code"] == "permission_denied"


# Denials --------------------------------------------------------------------------------------------------------------


def denied(key: ApiKey, hour: datetime, **values: Any) -> Denial:
    common: dict[str, Any] = {"code": "rate_limit_exceeded", "limit": "tokens_per_minute", "subject": "tenant"}
    return Denial.objects.create(
        tenant=key.tenant,
        key=key,
        hour=hour,
        count=3,
        last_at=hour + timedelta(minutes=5),
        last_request_id=uuid7(),
        last_model="tiny",
        last_message="Too fast.",
        **common | values,
    )


def test_why_requests_were_refused(caller: Make, key: ApiKey) -> None:
    row = denied(key, NOON)
    [shown] = caller().get("/api/denials").json()["data"]
    assert shown == {
        "id": f"2030031012-{key.public_id}-rate_limit_exceeded-tokens_per_minute-tenant",
        "object": "denial",
        "hour": "2030-03-10T12:00:00Z",
        "key": key.public_id,
        "code": "rate_limit_exceeded",
        "limit": "tokens_per_minute",
        "subject": "tenant",
        "count": 3,
        "last": {
            "at": "2030-03-10T12:05:00Z",
            "request_id": str(row.last_request_id),
            "model": "tiny",
            "message": "Too fast.",
        },
    }


def test_denials_by_page_and_by_filter(caller: Make, tenant: Tenant, key: ApiKey, stranger: Caller) -> None:
    other, _ = ApiKey.issue(tenant)
    for hours in range(3):
        denied(key, NOON + timedelta(hours=hours))
        denied(other, NOON + timedelta(hours=hours), code="model_not_found", limit="", subject="")
    owner, found, after = caller(), [], ""
    for _ in range(3):
        page = owner.get(f"/api/denials?limit=2{after}").json()
        found += [row["id"] for row in page["data"]]
        after = f"&after={page['last_id']}"
    assert (len(set(found)), found == sorted(found, key=lambda id: id[:10], reverse=True)) == (6, True)
    assert page["has_more"] is False
    assert len(ids(owner, f"/api/denials?key={other.public_id}")) == 3
    assert len(ids(owner, "/api/denials?code=model_not_found&from=2030-03-10T13:00:00Z")) == 2
    assert len(ids(owner, "/api/denials?limit_name=tokens_per_minute&to=2030-03-10T13:00:00Z")) == 1
    assert ids(stranger, "/api/denials") == []
    for wrong in (found[0], "x", "9999999999-a-b-c-d", "2030031099-a-b-c-d"):
        assert error(stranger.get(f"/api/denials?after={wrong}"), 400)["param"] == "after"


# Limits ---------------------------------------------------------------------------------------------------------------


def test_what_is_left_of_the_accounts_members_and_keys_limits(caller: Make, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(tokens_per_month=1000, max_input_tokens=50, requests_per_minute=60)
    user = get_user_model().objects.create_user("ann")
    member = Member.objects.create(tenant=tenant, user=user, budget_hard=500)
    key, _ = ApiKey.issue(tenant, member=member)
    ApiKey.objects.filter(tenant=tenant, pk=key.pk).update(tokens_per_day=100)
    month = timezone.now().date().replace(day=1)
    Account.objects.create(tenant=tenant, subject="tenant", month=month, month_tokens=300, month_cost=20)
    Account.objects.create(tenant=tenant, subject=f"member:{member.pk}", month=month, month_cost=120)
    owner = caller()
    [account] = owner.get("/api/limits").json()["data"]
    assert (account["subject"], account["id"], account["month_cost"]) == ("tenant", "acme", 20)
    assert account["limits"]["tokens_per_month"] == {"limit": 1000, "used": 300, "left": 700}
    assert account["limits"]["max_input_tokens"] == {"limit": 50, "used": None, "left": None}
    assert account["limits"]["requests_per_minute"] == {"limit": 60, "used": 0, "left": 60}
    found = owner.get(f"/api/limits?key={key.public_id}").json()["data"]
    assert [(row["subject"], row["id"]) for row in found] == [
        ("tenant", "acme"),
        ("member", str(member.public_id)),
        ("key", key.public_id),
    ]
    assert found[1]["limits"] == {"budget_hard": {"limit": 500, "used": 120, "left": 380}}
    assert found[2]["limits"] == {"tokens_per_day": {"limit": 100, "used": 0, "left": 100}}
    assert len(owner.get(f"/api/limits?member={member.public_id}").json()["data"]) == 2


def test_limits_of_a_key_are_for_whoever_may_see_it(caller: Make, tenant: Tenant, key: ApiKey) -> None:
    colleagues, _ = ApiKey.issue(tenant, member=_member(tenant, "owner"))
    developer = caller("developer")
    own = ApiKey.objects.filter(tenant=tenant, member__role="developer").get()
    assert developer.get(f"/api/limits?key={own.public_id}").status_code == 200
    nothing = error(developer.get("/api/limits?key=" + "x" * 12), 404)
    for other in (key, colleagues):
        assert caller().get(f"/api/limits?key={other.public_id}").status_code == 200
        assert developer.get(f"/api/keys/{other.public_id}").status_code == 404
        found = error(developer.get(f"/api/limits?key={other.public_id}"), 404)
        assert found == nothing | {"message": f"There is no key '{other.public_id}'."}


def test_limits_of_a_stranger_are_those_of_nobody(tenant: Tenant, key: ApiKey, stranger: Caller) -> None:
    member = _member(tenant, "viewer")
    for name, theirs, nobodys in (
        ("key", key.public_id, "x" * 12),
        ("key", key.public_id, "%00"),
        ("member", str(member.public_id), NOBODYS),
    ):
        found = error(stranger.get(f"/api/limits?{name}={theirs}"), 404)
        nothing = error(stranger.get(f"/api/limits?{name}={nobodys}"), 404)
        assert (found["code"], found["param"]) == (nothing["code"], nothing["param"]) == ("not_found", name)
    assert [row["id"] for row in stranger.get("/api/limits").json()["data"]] == ["globex"]
    assert error(stranger.get(f"/api/limits?key=a&member={NOBODYS}"), 400)["param"] == "member"
