"""Invitations over the management API; accepting them is tests/gateway/accounts/test_invitations.py."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.db import connection
from django.utils import timezone

from tenants import invitations, proofs
from tenants.actors import Actor
from tenants.callers import Role
from tenants.errors import Conflict
from tenants.models import AuditEntry, IdempotentRequest, Invitation, Member, Plan, Tenant
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

PATH = "/api/invitations"
BODY = {"email": "Ada@Example.org", "role": "developer"}
NOBODY = "01890000-0000-7000-8000-000000000000"
ACTOR = Actor("command", "tests")


def token_of(answer: Any) -> str:
    link: str = answer.json()["link"]
    assert link.startswith("http://127.0.0.1:8000/accounts/invitations/")
    return link.rpartition("/")[2]


def test_an_invitation_shows_its_link_once_and_stores_a_hash(caller: Make, tenant: Tenant) -> None:
    asking = caller()
    answer = asking.post(PATH, BODY, **{"Idempotency-Key": "k"})
    made = answer.json()
    assert answer.status_code == 201
    assert (made["email"], made["role"], made["state"]) == ("ada@example.org", "developer", "open")
    token = token_of(answer)
    row = Invitation.objects.get(tenant=tenant)
    assert bytes(row.digest) == sha256(token.encode()).digest()
    assert row.expires_at - row.created_at == pytest.approx(timedelta(days=7), abs=timedelta(minutes=1))
    again = asking.post(PATH, BODY, **{"Idempotency-Key": "k"}).json()
    assert again == {**made, "link": None}
    assert token.encode() not in bytes(IdempotentRequest.objects.get().body)
    (listed,) = asking.get(PATH).json()["data"]
    assert listed == asking.get(f"{PATH}/{made['id']}").json() == {k: v for k, v in made.items() if k != "link"}
    (entry,) = AuditEntry.objects.filter(tenant=tenant)
    assert (entry.action, entry.subject, token in str(entry.after)) == ("invitation.made", "ada@example.org", False)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "email"),
        ({"email": "nobody"}, "email"),
        ({"email": "a\0@example.org"}, "email"),
        ({"email": f"{'a' * 150}@example.org"}, "email"),
        ({"email": 3}, "email"),
        ({"email": "a@example.org\nBcc: b@example.org"}, "email"),
        ({"email": "a@example.org", "role": "king"}, "role"),
        ({"email": "a@example.org", "roles": []}, "roles"),
    ],
)
def test_what_cannot_be_is_refused_by_name(body: Any, param: str, caller: Make, tenant: Tenant) -> None:
    assert error(caller().post(PATH, body), 400)["param"] == param
    assert not Invitation.objects.filter(tenant=tenant).exists()


def test_only_owners_invite(caller: Make) -> None:
    for role in ("developer", "viewer"):
        for answer in (caller(role).post(PATH, BODY), caller(role).get(PATH)):
            assert error(answer, 403)["code"] == "permission_denied"
    assert caller("owner").post(PATH, BODY).status_code == 201


def test_a_second_invitation_of_an_address_replaces_the_first(caller: Make, tenant: Tenant) -> None:
    first, second = (token_of(caller().post(PATH, BODY)) for _ in range(2))
    assert invitations.of_token(second).email == "ada@example.org"
    with pytest.raises(Exception, match="no open invitation"):
        invitations.of_token(first)
    assert sorted(row["state"] for row in caller().get(PATH).json()["data"]) == ["open", "revoked"]


def test_members_are_not_invited_and_open_invitations_are_counted(
    caller: Make, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = get_user_model().objects.create_user("x", "Ada@example.org")
    Member.objects.create(tenant=tenant, user=user, role="viewer")
    assert error(caller().post(PATH, BODY), 409)["code"] == "already_member"
    monkeypatch.setattr(invitations, "MOST_OPEN", 2)
    for number in range(2):
        assert caller().post(PATH, {"email": f"a{number}@example.org"}).status_code == 201
    assert error(caller().post(PATH, {"email": "b@example.org"}), 409)["code"] == "too_many_invitations"
    Invitation.objects.filter(tenant=tenant, email="a0@example.org").update(expires_at=timezone.now())
    assert caller().post(PATH, {"email": "b@example.org"}).status_code == 201


def test_invitations_that_were_revoked_count_for_a_day(
    caller: Make, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may have been a mail."""
    monkeypatch.setattr(invitations, "MOST_A_DAY", 2)
    for number in range(2):
        assert caller().post(PATH, {"email": f"a{number}@example.org"}).status_code == 201
    Invitation.objects.filter(tenant=tenant).update(revoked_at=timezone.now())
    assert error(caller().post(PATH, {"email": "b@example.org"}), 409)["code"] == "too_many_invitations"
    Invitation.objects.filter(tenant=tenant).update(created_at=timezone.now() - timedelta(days=1))
    assert caller().post(PATH, {"email": "b@example.org"}).status_code == 201


def test_an_invitation_is_taken_back(caller: Make, tenant: Tenant) -> None:
    asking = caller()
    answer = asking.post(PATH, BODY)
    path = f"{PATH}/{answer.json()['id']}"
    assert asking.delete(path).status_code == 204
    assert asking.delete(path).status_code == 204
    assert asking.get(path).json()["state"] == "revoked"
    assert [entry.action for entry in AuditEntry.objects.filter(tenant=tenant)] == [
        "invitation.revoked",
        "invitation.made",
    ]
    with pytest.raises(Exception, match="no open invitation"):
        invitations.of_token(token_of(answer))
    Invitation.objects.filter(tenant=tenant).update(revoked_at=None, accepted_at=timezone.now())
    error(asking.delete(path), 409)


def test_a_stranger_finds_no_invitation(caller: Make, tenant: Tenant, stranger: Caller) -> None:
    made = caller().post(PATH, BODY).json()["id"]
    for id in (made, NOBODY, "x", "%00"):
        for answer in (stranger.get(f"{PATH}/{id}"), stranger.delete(f"{PATH}/{id}")):
            assert "There is no invitation" in error(answer, 404)["message"]
    assert stranger.get(PATH).json()["data"] == []
    assert stranger.post(PATH, BODY).status_code == 201
    assert Invitation.objects.get(tenant=tenant).state == "open"


def test_a_link_is_mailed_where_there_is_a_server(
    caller: Make, settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        caller().post(PATH, {"email": "nobody@example.org"})
    assert mail.outbox == []
    settings.MAIL, settings.PUBLIC_URL = True, "https://loraplex.example.org"
    with django_capture_on_commit_callbacks(execute=True):
        answer = caller().post(PATH, BODY)
    assert answer.json()["link"] is None  # or the inviter could open it in the invited's name
    (sent,) = mail.outbox
    assert sent.to == ["ada@example.org"]
    link = re.search(r"https://loraplex\.example\.org/accounts/invitations/(\S+)", sent.body)
    assert link is not None
    token, mailed = proofs.opened(link[1])
    assert (invitations.of_token(token).email, mailed) == ("ada@example.org", True)


def test_who_asks_does_not_choose_where_the_link_points(caller: Make) -> None:
    assert token_of(caller().post(PATH, BODY, Host="testserver:4444"))


@pytest.mark.django_db(transaction=True)
def test_invitations_at_the_same_time_leave_one_open() -> None:
    tenant = Tenant.objects.create(slug="acme", display_name="Acme", plan=Plan.objects.create(name="p"))
    start, made = threading.Barrier(6), []

    def invite() -> None:
        start.wait()
        try:
            made.append(invitations.invite(ACTOR, tenant, "ada@example.org", Role.VIEWER)[0])
        except Conflict as error:
            made.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=invite) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(one) for one in made] == [Invitation] * 6
    assert Invitation.objects.filter(tenant=tenant, revoked_at=None).count() == 1
