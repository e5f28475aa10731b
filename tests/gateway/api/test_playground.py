"""Tickets for people who are signed in: whose key is behind them, and what it may."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from gateway.models import WsTicket
from tenants import accounts, batches, key_ring, membership, operators, playground, restrictions
from tenants.actors import Actor as Doer
from tenants.callers import Caller, Role
from tenants.models import Adapter, AdapterVersion, ApiKey, AuditEntry, BaseModel, Member, ModelAllowance, Tenant
from tenants.signed_in import caller_of_user
from tests.console.people import member, operator
from tests.gateway.api.conftest import Make

PATH = "/api/playground-tickets"
OPERATORS = "/api/operator/tenants/acme/playground-tickets"
DOER = Doer("command", "tests")


def client_of(user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


def asked(user: User, path: str = PATH, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    return client_of(user).post(path, body or {}, content_type="application/json", headers=headers)


def error(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_member_gets_a_ticket_of_their_own_key(tenant: Tenant) -> None:
    ada, bob = member(tenant, Role.DEVELOPER, "ada"), member(tenant, Role.OWNER, "bob")
    answer = asked(ada)
    assert answer.status_code == 201
    key = ApiKey.objects.get(tenant=tenant)
    assert (key.name, key.scope) == ("playground", "inference")
    assert key.member == Member.objects.get(tenant=tenant, user=ada)
    assert (answer.json()["key_id"], answer.json()["url"]) == (key.public_id, "/v1/ws")
    assert WsTicket.objects.get().key == key
    entry = AuditEntry.objects.get(tenant=tenant, action="key.issued")
    assert (entry.actor_kind, entry.actor_name, entry.subject) == ("member", "ada", key.public_id)
    assert asked(ada).json()["key_id"] == key.public_id, "the second time it is the same key"
    assert asked(bob).json()["key_id"] != key.public_id
    assert WsTicket.objects.count() == 3


def test_a_stranger_gets_no_ticket(tenant: Tenant, stranger: Any) -> None:
    eve = member(stranger.tenant, Role.OWNER, "eve")
    assert error(asked(eve, headers={"X-Tenant": "acme"})) == (404, "not_found")
    assert error(asked(eve, OPERATORS)) == (403, "permission_denied")
    asked(eve)
    assert not ApiKey.objects.filter(tenant=tenant).exists()
    assert WsTicket.objects.get().key.tenant == stranger.tenant


def test_who_may_not_generate_gets_none(tenant: Tenant) -> None:
    assert error(asked(member(tenant, Role.VIEWER))) == (403, "permission_denied")
    owner = member(tenant)
    tenant.state = "suspended"
    tenant.save()
    assert error(asked(owner)) == (403, "tenant_suspended")
    assert Client().post(PATH, {}, content_type="application/json").status_code == 401
    assert not WsTicket.objects.exists()


def test_another_sites_page_gets_none(tenant: Tenant) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(member(tenant))
    assert error(strict.post(PATH, {}, content_type="application/json")) == (403, "csrf_failed")


def test_each_operator_has_a_key_of_their_own(tenant: Tenant) -> None:
    root, grace = operator(), operator("grace")
    answers = {user: asked(user, OPERATORS) for user in (root, grace)}
    for user, answer in answers.items():
        assert answer.status_code == 201
        key = ApiKey.objects.get(tenant=tenant, playground_of=user)
        assert (key.name, key.member) == (f"playground of operator {user}", None)
        assert key.public_id == answer.json()["key_id"]
        assert AuditEntry.objects.get(tenant=tenant, action="key.issued", subject=key.public_id).actor_name == str(user)
    assert ApiKey.objects.filter(tenant=tenant).count() == 2


def test_that_an_operator_asks_is_audited_once_an_hour(tenant: Tenant) -> None:
    root = operator()
    key = asked(root, OPERATORS).json()["key_id"]
    asked(root, OPERATORS)
    found = AuditEntry.objects.filter(tenant=tenant, action="playground.opened")
    entry = found.get()
    assert (entry.actor_kind, entry.actor_name, entry.subject) == ("operator", "root", key)
    asked(operator("grace"), OPERATORS)
    assert [one.actor_name for one in found] == ["grace", "root"]
    with connection.cursor() as cursor:  # the log itself cannot be changed
        cursor.execute("ALTER TABLE tenants_auditentry DISABLE TRIGGER USER")
        cursor.execute("UPDATE tenants_auditentry SET at = at - interval '61 minutes'")
        cursor.execute("ALTER TABLE tenants_auditentry ENABLE TRIGGER USER")
    asked(root, OPERATORS)
    assert [one.actor_name for one in found.all()] == ["root", "grace", "root"]
    asked(member(tenant))
    assert found.all().count() == 3, "a member's use is the account's own affair"


def test_nobody_elses_key_is_adopted(tenant: Tenant) -> None:
    """Whatever a key is called, somebody may hold its text, or may have revoked it."""
    ada = member(tenant, Role.DEVELOPER)
    row = Member.objects.get(tenant=tenant, user=ada)
    known = [ApiKey.issue(tenant, name="playground", member=holder)[0].public_id for holder in (row, None)]
    revoked, _ = ApiKey.issue(tenant, name="playground")
    key_ring.revoke(Caller("tests", tenant, Role.OWNER, DOER), revoked)
    assert asked(ada).json()["key_id"] not in known
    answer = asked(operator(), OPERATORS)
    assert (answer.status_code, answer.json()["key_id"] in known) == (201, False)
    gone = asked(member(tenant, Role.DEVELOPER, "gone")).json()["key_id"]
    membership.remove(DOER, Member.objects.get(tenant=tenant, user__username="gone"))
    assert ApiKey.objects.get(tenant=tenant, public_id=gone).member is None
    assert asked(operator("grace"), OPERATORS).status_code == 201


def test_a_key_gets_none(tenant: Tenant, caller: Make, operator: Any) -> None:
    """Nobody is signed in whose leaving could end it."""
    for answer in (caller().post(PATH), caller("developer").post(PATH), operator.post(OPERATORS)):
        assert error(answer) == (403, "permission_denied")
        assert "signed in" in answer.json()["error"]["message"]
    assert not WsTicket.objects.exists()
    assert not ApiKey.objects.filter(tenant=tenant, scope="inference").exists()


def test_a_revoked_key_is_not_replaced_in_silence(tenant: Tenant) -> None:
    ada = member(tenant, Role.DEVELOPER)
    first = asked(ada).json()["key_id"]
    caller = Caller("tests", tenant, Role.OWNER, DOER)
    key_ring.revoke(caller, key_ring.find(caller, first))
    answer = asked(ada)
    assert error(answer) == (409, "playground_key_ended")
    assert first in answer.json()["error"]["message"]
    assert WsTicket.objects.count() == 1
    second = asked(ada, body={"new_key": True}).json()["key_id"]
    assert second != first
    assert asked(ada, body={"new_key": True}).json()["key_id"] == second, "one that works is not replaced"


def test_its_text_is_never_shown(tenant: Tenant, caller: Make) -> None:
    """Rotating shows a successor's; a batch would go on when its owner signs out."""
    ada = member(tenant)
    key = asked(ada).json()["key_id"]
    answer = caller().post(f"/api/keys/{key}/rotate")
    assert answer.status_code == 409
    assert "text" in answer.json()["error"]["message"]
    assert not ApiKey.objects.filter(tenant=tenant, predecessor__isnull=False).exists()
    asked(operator(), OPERATORS)
    owner = caller_of_user(ada, None, None)
    assert not batches.keys_for(owner).exists()
    usual, _ = ApiKey.issue(tenant)
    assert list(batches.keys_for(owner)) == [usual]


def test_a_key_kept_to_other_networks_opens_nothing_here(tenant: Tenant) -> None:
    ada = member(tenant)
    key = ApiKey.objects.get(public_id=asked(ada).json()["key_id"], tenant=tenant)
    key_ring.change(Caller("tests", tenant, Role.OWNER, DOER), key, networks=["203.0.113.0/24"])
    assert error(asked(ada)) == (403, "address_not_allowed")


def test_wrong_bodies_are_refused_by_field(tenant: Tenant) -> None:
    ada = member(tenant)
    for body, param in (({"new_key": 1}, "new_key"), ({"key": "x"}, "key")):
        answer = asked(ada, body=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_repetition_shows_no_ticket(tenant: Tenant) -> None:
    ada = member(tenant)
    assert asked(ada, headers={"Idempotency-Key": "once"}).json()["ticket"]
    assert asked(ada, headers={"Idempotency-Key": "once"}).json()["ticket"] is None


@pytest.mark.django_db(transaction=True)
def test_two_first_uses_make_one_key(caller: Make, tenant: Tenant) -> None:
    ada, statuses = member(tenant), []
    barrier = threading.Barrier(4)

    def ask() -> None:
        client = client_of(ada)
        barrier.wait(10)
        statuses.append(client.post(PATH, {}, content_type="application/json").status_code)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert statuses == [201] * 4
    assert ApiKey.objects.filter(tenant=tenant, playground_of=ada).count() == 1


def test_models_are_those_of_the_key_it_has_or_would_have(tenant: Tenant, stranger: Any) -> None:
    base = _base("tiny")
    for name in ("pirate", "emoji"):
        _adapter(tenant, name, base)
    _adapter(stranger.tenant, "secret", base)
    ModelAllowance.objects.create(tenant=tenant, base_model=base)
    row = Member.objects.get(tenant=tenant, user=member(tenant, Role.DEVELOPER))
    caller = Caller("tests", tenant, Role.DEVELOPER, DOER, row, user=row.user)
    assert playground.models(caller) == ["tiny", "acme/emoji", "acme/pirate"]
    assert playground.models(caller, "PIR") == ["acme/pirate"]
    assert playground.models(caller, "%") == []
    assert playground.models(caller, most=2) == ["tiny", "acme/emoji"]
    restrictions.restrict(DOER, row, ["acme/pirate"])
    assert playground.models(caller) == ["acme/pirate"]
    key = playground.ready(caller)
    restrictions.restrict(DOER, row, None)
    key_ring.change(Caller("tests", tenant, Role.OWNER, DOER), key, models=["tiny"])
    assert playground.models(caller) == ["tiny"]
    key_ring.revoke(Caller("tests", tenant, Role.OWNER, DOER), key)
    assert playground.models(caller) == ["tiny", "acme/emoji", "acme/pirate"], "those of the next one"


def _base(name: str) -> BaseModel:
    return BaseModel.objects.create(name=name, fingerprint="f" * 64, directory=f"/models/{name}", context_length=100)


def _adapter(tenant: Tenant, name: str, base: BaseModel) -> None:
    adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base)
    adapter.current = AdapterVersion.objects.create(adapter=adapter, number=1, state="ready", digest=name * 8)
    adapter.save()


def test_a_removed_member_loses_the_key(tenant: Tenant) -> None:
    member(tenant)
    row = Member.objects.get(tenant=tenant, user=member(tenant, Role.DEVELOPER))
    asked(row.user)
    membership.remove(DOER, row)
    assert ApiKey.objects.get(tenant=tenant).state == "revoked"


@pytest.mark.parametrize("removed", [True, False])
def test_an_operator_who_is_none_any_more_loses_the_keys(tenant: Tenant, stranger: Any, removed: bool) -> None:
    root, other = operator(), operator("other")
    for slug in (tenant.slug, stranger.tenant.slug):
        for user in (root, other):
            asked(user, f"/api/operator/tenants/{slug}/playground-tickets")
    if removed:
        operators.remove_operator(DOER, "root")
    else:
        assert accounts.switch_off(DOER, root) == 2
    keys = ApiKey.objects.unscoped()
    assert {key.state for key in keys.filter(playground_of=root)} == {"revoked"}
    assert {key.state for key in keys.filter(playground_of=other)} == {"active"}
    found = AuditEntry.objects.unscoped().filter(action="key.revoked")
    assert {entry.tenant for entry in found} == {tenant, stranger.tenant}
