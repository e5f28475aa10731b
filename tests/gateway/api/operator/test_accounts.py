"""Switching people's accounts off over REST: keys end, owners and operators remain, the audit log hears of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from tenants import accounts
from tenants.actors import Actor
from tenants.errors import Conflict
from tenants.models import ApiKey, AuditEntry, Member, Plan, Tenant
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

ACCOUNTS = "/api/operator/accounts"


def person(tenant: Tenant, name: str, role: str = "owner", **fields: Any) -> Member:
    return Member.objects.create(tenant=tenant, user=get_user_model().objects.create_user(name, **fields), role=role)


def test_off_and_on(operator: Caller, tenant: Tenant, caller: Make) -> None:
    person(tenant, "ada")
    eve = person(tenant, "eve", "developer")
    keys = [ApiKey.issue(tenant, scope=scope, member=eve) for scope in ("manage", "inference")]
    program = Caller(tenant, keys[0][1].reveal())
    assert program.get("/api/keys").status_code == 200
    off = operator.post(f"{ACCOUNTS}/eve/switch-off")
    assert (off.status_code, off.json()["active"]) == (200, False)
    assert operator.post(f"{ACCOUNTS}/eve/switch-off").json() == off.json()
    error(program.get("/api/keys"), 401)
    assert not ApiKey.objects.filter(tenant=tenant, member=eve, revoked_at=None).exists()
    refused = error(caller().post("/api/keys", {"member": str(eve.public_id)}), 409)
    assert (refused["param"], "switched off" in refused["message"]) == ("member", True)
    assert operator.post(f"{ACCOUNTS}/eve/switch-on").json()["active"] is True
    error(program.get("/api/keys"), 401)
    assert caller().post("/api/keys", {"member": str(eve.public_id)}).status_code == 201
    found = AuditEntry.objects.unscoped().filter(subject="eve").order_by("pk")
    assert [(entry.action, entry.tenant) for entry in found] == [
        ("account.switched_off", None),
        ("member.switched_off", tenant),
        ("account.switched_on", None),
        ("member.switched_on", tenant),
    ]
    listed = operator.get(ACCOUNTS).json()["data"]
    assert [(one["username"], one["operator"]) for one in listed] == [("ada", False), ("eve", False)]
    assert operator.get(f"{ACCOUNTS}/ada").json() == listed[0]


def test_a_manage_key_of_an_inactive_member_opens_nothing(caller: Make, tenant: Tenant) -> None:
    program = caller("owner")
    get_user_model().objects.filter(username__startswith="owner-of").update(is_active=False)
    assert error(program.get("/api/keys"), 401)["code"] == "invalid_api_key"


def test_the_last_owner_and_the_last_operator_stay(operator: Caller, tenant: Tenant, stranger: Caller) -> None:
    person(tenant, "ada")
    assert error(operator.post(f"{ACCOUNTS}/ada/switch-off"), 409)["code"] == "last_owner"
    get_user_model().objects.create_user("grace", is_staff=True)
    assert "without an operator" in error(operator.post(f"{ACCOUNTS}/grace/switch-off"), 409)["message"]
    assert set(get_user_model().objects.values_list("is_active", flat=True)) == {True}
    for method, path in (("get", f"{ACCOUNTS}/nobody"), ("post", f"{ACCOUNTS}/nobody/switch-on")):
        assert error(getattr(operator, method)(path), 404)["param"] == "username"
    error(stranger.post(f"{ACCOUNTS}/ada/switch-off"), 401)


@pytest.mark.django_db(transaction=True)
def test_of_two_owners_switched_off_at_once_one_stays() -> None:
    tenant = Tenant.objects.create(slug="acme", display_name="Acme", plan=Plan.objects.create(name="p"))
    for turn in range(5):
        Member.objects.filter(tenant=tenant).delete()
        owners = [person(tenant, f"owner-{turn}-{n}") for n in range(3)]
        start = threading.Barrier(3)
        refused: list[Member] = []

        def off(member: Member, start: Any = start, refused: Any = refused) -> None:
            start.wait()
            try:
                accounts.switch_off(Actor("command", "tests", None), member.user)
            except Conflict:
                refused.append(member)
            finally:
                connection.close()

        threads = [threading.Thread(target=off, args=(owner,)) for owner in owners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 1
