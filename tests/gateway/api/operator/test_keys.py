"""Operators' own keys over REST, and tenants' keys in operators' hands."""

from __future__ import annotations

from tenants import keys
from tenants.models import AuditEntry, Tenant
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

KEYS = "/api/operator/keys"


def test_issue_use_revoke(operator: Caller) -> None:
    made = operator.post(KEYS, {"name": "dashboard", "expires_at": "2090-01-31T00:00:00Z"})
    assert made.status_code == 201
    issued = made.json()
    other = Caller(None, issued.pop("api_key"))
    assert keys.parse(other.secret, keys.OPERATOR_PREFIX).public_id == issued["id"]
    listed = other.get(KEYS).json()["data"]
    assert [key["name"] for key in listed] == ["dashboard", "tests"]
    assert listed[0]["last_used_at"] is not None
    assert error(operator.post(KEYS, {"name": "dashboard"}), 409)["param"] == "name"
    revoked = operator.post(f"{KEYS}/{issued['id']}/revoke").json()
    assert revoked["revoked_at"] is not None
    assert operator.post(f"{KEYS}/{issued['id']}/revoke").json() == revoked
    error(other.get(KEYS), 401)
    entries = AuditEntry.objects.unscoped().filter(subject="dashboard").order_by("pk")
    assert [(entry.action, entry.actor_name) for entry in entries] == [
        ("operator_key.issued", "tests"),
        ("operator_key.revoked", "tests"),
    ]


def test_wrong_values_and_unknown_keys(operator: Caller) -> None:
    for body, param in (
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "expires_at": 5}, "expires_at"),
        ({"name": "x", "scope": "manage"}, "scope"),
    ):
        assert error(operator.post(KEYS, body), 400)["param"] == param
    for key_id in ("nothing", "%00"):
        error(operator.post(f"{KEYS}/{key_id}/revoke"), 404)


def test_a_tenants_keys_in_an_operators_hands(operator: Caller, caller: Make, tenant: Tenant) -> None:
    """The same functions, with the operator in the log; and the tenant sees what was done."""
    path = f"/api/operator/tenants/{tenant.slug}/keys"
    made = operator.post(path, {"name": "by hand", "limits": {"max_concurrent": 2}}).json()
    rotated = operator.post(f"{path}/{made['id']}/rotate", {"overlap_seconds": 0}).json()
    assert operator.post(f"{path}/{rotated['id']}/revoke").json()["state"] == "revoked"
    owner = caller()
    assert owner.get(f"/api/keys/{made['id']}").json()["successor"] == rotated["id"]
    entry = AuditEntry.objects.get(tenant=tenant, subject=rotated["id"], action="key.revoked")
    assert (entry.actor_kind, entry.actor_name) == ("operator", "tests")
    error(operator.get(f"/api/operator/tenants/nobody/keys/{made['id']}"), 404)
    error(owner.get(path), 401)
