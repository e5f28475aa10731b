"""What runs and which keys work: the same wherever it is counted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from fleet.overview import overview
from tenants import batches, key_search, operator_keys, peppers, roster
from tenants import overview as tenant_overview
from tenants.actors import Actor as Doer
from tenants.callers import Caller, Role
from tenants.models import ApiKey, InferenceRequest, Member, OperatorKey
from tenants.recent import recent
from tests.console.people import client_of, member, operator
from tests.gateway.api import ledger
from tests.gateway.house import Actor

pytestmark = pytest.mark.django_db


def page(client: Any, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer


def test_a_request_whose_lease_is_over_runs_nowhere(acme: Actor) -> None:
    ann = Member.objects.get(tenant=acme.tenant, user=member(acme.tenant))
    key, _ = ApiKey.issue(acme.tenant, member=ann)
    now, client = timezone.now(), client_of(operator())
    ledger.request(key, now)
    ledger.request(key, now - timedelta(minutes=5))
    assert InferenceRequest.objects.filter(tenant=acme.tenant, state="running").count() == 2
    assert recent(None).running == recent(acme.tenant).running == 1
    listed: Any = roster.rows().get(pk=acme.tenant.pk)
    assert listed.running == 1
    assert key_search.running(key) == 1
    assert overview()["running"] == 1
    assert page(client, "/console/t/acme/account").context["running"] == 1
    assert "1 running request of it" in page(client, "/console/tenants/acme/suspend").content.decode()
    leave = page(client, f"/console/t/acme/members/{ann.public_id}/remove").content.decode()
    assert "1 running request will end" in leave


def test_a_key_that_is_expired_or_revoked_works_nowhere(acme: Actor) -> None:
    now = timezone.now()
    ended = {"expired": {"expires_at": now - timedelta(seconds=1)}, "revoked": {"revoked_at": now}}
    for state, values in ended.items():
        key, _ = ApiKey.issue(acme.tenant, name=state)
        ApiKey.objects.filter(tenant=acme.tenant, pk=key.pk).update(**values)
        assert [row.pk for row in key_search.in_state(ApiKey.objects.filter(tenant=acme.tenant), state)] == [key.pk]
        own, _ = OperatorKey.issue(state)
        OperatorKey.objects.filter(pk=own.pk).update(**values)
    works, _ = ApiKey.issue(acme.tenant, expires_at=now + timedelta(days=1))
    other, _ = operator_keys.issue(Doer("operator", "ann"), "works")
    rows, mine = ApiKey.objects.filter(tenant=acme.tenant), {acme.key.pk, works.pk}
    caller = Caller("key:x", acme.tenant, Role.OWNER, Doer("key", "x"))
    assert {key.pk for key in rows.working()} == {key.pk for key in rows if key.state == "active"} == mine
    assert {key.pk for key in acme.tenant.api_keys.working()} == mine
    assert {key.pk for key in key_search.in_state(rows, "active")} == mine
    assert {key.pk for key in batches.keys_for(caller)} == mine
    assert list(OperatorKey.objects.working()) == [other]
    (newest,) = peppers.peppers()
    assert (newest.keys, newest.operator_keys) == (2, 1)
    client = client_of(operator())
    assert page(client, "/console/t/acme/account").context["counts"]["keys"] == 2
    assert page(client, "/console/settings").context["keys"] == 1
    assert "its 2 keys are refused" in page(client, "/console/tenants/acme/suspend").content.decode()
    rows.filter(pk__in=mine).update(revoked_at=now)
    steps = tenant_overview.overview(acme.tenant, 1)["steps"]
    assert steps is not None
    assert steps["key"] is False, "a key that works is the first step"


def test_counting_what_runs_keeps_to_its_index(acme: Actor) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    everybody, ones = InferenceRequest.objects.unscoped().running(), InferenceRequest.objects.running()
    for rows in (everybody, ones.filter(tenant=acme.tenant)):
        assert "request_running" in rows.explain()
    assert "request_running" in roster.rows().explain()
    assert "tenants_apikey_tenant" in ApiKey.objects.working().filter(tenant=acme.tenant).explain()
