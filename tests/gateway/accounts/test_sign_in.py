"""Signing in and out in a browser, tries, passwords, and sessions as callers of the management API."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.core import signing
from django.db import connection
from django.test import Client
from django.utils import timezone

from tenants import operators, proofs, sign_in, tasks
from tenants.actors import Actor
from tenants.links import password_link
from tenants.models import AuditEntry, IdempotentRequest, Member, SignInTries, Tenant
from tests.gateway.accounts.conftest import PASSWORD, Person, make_person, make_tenant

SIGN_IN = "/accounts/sign-in"
BY_TEST = Actor("command", "tests")
Make = Callable[..., Person]


def enter(browser: Client, username: str, password: str = PASSWORD, **more: str) -> Any:
    """Through the form, with the token that the page carries."""
    page = browser.get(SIGN_IN)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.content.decode())
    assert token is not None
    return browser.post(SIGN_IN, {"csrfmiddlewaretoken": token[1], "username": username, "password": password, **more})


# Pages ----------------------------------------------------------------------------------------------------------------


def test_somebody_signs_in_and_out(person: Make) -> None:
    ada = person("ada", "owner")
    assert enter(ada.browser, "ada")["Location"] == "/console/"
    page = ada.browser.get("/accounts/").content.decode()
    assert "Acme" in page
    assert "owner" in page
    assert AuditEntry.objects.unscoped().get(action="account.signed_in").actor_name == "ada"
    token = ada.browser.cookies["csrftoken"].value
    assert ada.browser.post("/accounts/sign-out").status_code == 403
    assert ada.browser.get("/accounts/sign-out").status_code == 405
    assert ada.browser.post("/accounts/sign-out", headers={"X-CSRFToken": token}).status_code == 302
    assert ada.browser.get("/accounts/")["Location"] == f"{SIGN_IN}?next=/accounts/"


def test_an_address_is_a_name_however_it_is_written(person: Make) -> None:
    """One's own by proof, or the name that one was invited under."""
    ada, bob = person("ada", "owner"), person("bob@example.org", "viewer")
    claimed = person("eve", "viewer")
    get_user_model().objects.filter(pk=claimed.user.pk).update(email="claimed@example.org")
    proofs.prove(BY_TEST, ada.user, "ada@example.org")
    for name, who in (("ada@example.org", ada), ("Ada@Example.org", ada), ("Bob@example.org", bob)):
        browser = Client(enforce_csrf_checks=True)
        assert enter(browser, name)["Location"] == "/console/", name
        assert browser.session["_auth_user_id"] == str(who.user.pk)
    assert enter(Client(enforce_csrf_checks=True), "claimed@example.org").status_code == 400


def test_an_operator_whose_name_is_an_address_signs_in(db: None) -> None:
    made = operators.create_operator(BY_TEST, "Grace@Example.org", "grace@example.org")
    assert made.username == "grace@example.org"
    made.set_password(PASSWORD)
    made.save()
    assert enter(Client(enforce_csrf_checks=True), "Grace@Example.org")["Location"] == "/console/"
    assert operators.find_user("Grace@Example.org") == made
    make_person("root", is_staff=True)
    operators.remove_operator(BY_TEST, "Grace@Example.org")
    assert AuditEntry.objects.unscoped().filter(action="operator.removed", subject="grace@example.org").exists()


def test_wrong_names_and_wrong_passwords_look_alike(person: Make) -> None:
    person("ada", "owner")
    person("off", "viewer", is_active=False)
    bare = make_person("bare")
    bare.user.set_unusable_password()
    bare.user.save()
    pages = set()
    for name, password in (("ada", "wrong"), ("nobody", PASSWORD), ("off", PASSWORD), ("bare", PASSWORD), ("bare", "")):
        answer = enter(Client(), name, password)
        assert answer.status_code == 400
        if password:
            pages.add(re.sub(r'(value|csrf)="[^"]*"', "", answer.content.decode()))
    assert len(pages) == 1
    assert enter(Client(), "a\0b").status_code == 400
    assert Session.objects.count() == 0


@pytest.mark.parametrize("username", ["known", "unknown", "off"])
def test_the_hasher_runs_once_whoever_asks(
    username: str, person: Make, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The time that an answer takes is the hasher's."""
    person("known", "viewer")
    person("off", "viewer", is_active=False)
    from django.contrib.auth.hashers import MD5PasswordHasher

    runs: list[str] = []
    encode = MD5PasswordHasher.encode
    monkeypatch.setattr(MD5PasswordHasher, "encode", lambda self, *args: runs.append("run") or encode(self, *args))
    assert enter(Client(), username, "wrong").status_code == 400
    assert runs == ["run"]


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ("/accounts/password", "/accounts/password"),
        ("https://evil.example/", "/console/"),
        ("//evil.example/", "/console/"),
        ("javascript:alert(1)", "/console/"),
        ("/\\evil.example", "/console/"),
    ],
)
def test_only_pages_of_this_host_come_next(wanted: str, got: str, person: Make) -> None:
    assert enter(person("ada", "owner").browser, "ada", next=wanted)["Location"] == got


def test_the_admins_own_door_is_this_one(person: Make) -> None:
    answer = Client().get("/admin/login/?next=/admin/")
    assert (answer.status_code, answer["Location"]) == (302, f"{SIGN_IN}?next=/admin/")
    assert Client().post("/admin/login/", {"username": "x", "password": "y"}).status_code == 302
    answer = Client().post("/admin/password_change/", {"old_password": "x"})
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/password")


def test_sessions_that_are_over_and_old_answers_are_deleted(person: Make) -> None:
    person("ada", "owner").sign_in()
    over = person("eve", "owner").sign_in().session.session_key
    now = timezone.now()
    Session.objects.filter(pk=over).update(expire_date=now - timedelta(seconds=1))
    for key, hours in (("old", 25), ("new", 23)):
        made = IdempotentRequest.objects.create(caller="key:1", key=key, fingerprint=b"x")
        IdempotentRequest.objects.filter(pk=made.pk).update(created_at=now - timedelta(hours=hours))
    assert tasks.forget_callers() == 2
    assert Session.objects.count() == 1
    assert IdempotentRequest.objects.get().key == "new"


def test_the_session_is_a_new_one_after_signing_in(person: Make) -> None:
    ada = person("ada", "owner")
    session = ada.browser.session
    session["x"] = 1
    session.save()
    ada.browser.cookies["sessionid"] = session.session_key
    enter(ada.browser, "ada")
    assert ada.browser.cookies["sessionid"].value != session.session_key


# Tries ----------------------------------------------------------------------------------------------------------------


def test_an_address_has_ten_tries_at_an_account(person: Make) -> None:
    ada, browser = person("ada", "owner"), Client(REMOTE_ADDR="192.0.2.1")
    for _ in range(sign_in.OF_PAIR):
        assert enter(browser, "ada", "wrong").status_code == 400
    refused = enter(browser, "ada")
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= sign_in.SECONDS / sign_in.OF_PAIR
    assert enter(browser, "nobody", "wrong").status_code == 400
    assert enter(ada.browser, "ada").status_code == 302  # who is somewhere else is not locked out
    past = timezone.now() - timedelta(seconds=sign_in.SECONDS / sign_in.OF_PAIR + 1)
    SignInTries.objects.filter(subject__startswith="pair:").update(at=past)
    assert enter(browser, "ada").status_code == 302
    assert SignInTries.objects.filter(subject__startswith="pair:").count() == 1


def test_many_addresses_lock_out_no_browser_that_was_in_before(person: Make) -> None:
    ada = person("ada", "owner")
    assert enter(ada.browser, "ada").status_code == 302
    cookie = ada.browser.cookies["device"]
    assert (cookie["httponly"], cookie["path"], "ada" in cookie.value) == (True, SIGN_IN, False)
    for number in range(sign_in.OF_ACCOUNT - 1):
        sign_in.take_try("ada", f"198.51.100.{number % 250}")
    for browser in (Client(), Client(REMOTE_ADDR="203.0.113.9")):
        assert enter(browser, "ada").status_code == 429
    ada.browser.defaults["REMOTE_ADDR"] = "198.51.100.7"
    for _ in range(sign_in.OF_DEVICE - 1):
        assert enter(ada.browser, "ada", "wrong").status_code == 400
    assert enter(ada.browser, "ada").status_code == 302


def test_a_known_browsers_tries_are_counted_too(person: Make) -> None:
    """A stolen or a made-up cookie is no way around the limits."""
    ada, eve = person("ada", "owner"), person("eve", "viewer")
    enter(ada.browser, "ada")
    for _ in range(sign_in.OF_DEVICE):
        assert enter(ada.browser, "ada", "wrong").status_code == 400
    assert enter(ada.browser, "ada").status_code == 429
    enter(eve.browser, "eve")
    known = eve.browser.cookies["device"].value
    assert sign_in.device_of("eve", known) is not None
    for cookie in (known, known[:-1], "x", "", None, signing.dumps(["x", "y"]), signing.dumps(3, salt=sign_in._SALT)):
        assert sign_in.device_of("ada", cookie) is None


def test_changing_a_password_takes_no_tries_to_sign_in(person: Make) -> None:
    ada = person("ada", "owner")
    ada.sign_in()
    wrong = {"old": "x", "password": "a loud yellow lamp", "again": "a loud yellow lamp"}
    ada.browser.get("/accounts/password")
    headers = {"X-CSRFToken": ada.browser.cookies["csrftoken"].value}
    statuses = [ada.browser.post("/accounts/password", wrong, headers=headers).status_code for _ in range(11)]
    assert statuses == [400] * sign_in.OF_DEVICE + [429]
    assert enter(Client(), "ada").status_code == 302


def test_an_address_has_fifty_tries_at_any_accounts(db: None) -> None:
    for number in range(sign_in.OF_ADDRESS):
        sign_in.take_try(f"user-{number}", f"2001:db8::{number:x}")
    for address in ("2001:db8::ffff", "2001:db8:0:0:1::"):
        with pytest.raises(sign_in.TooManyTries):
            sign_in.take_try("somebody", address)
    sign_in.take_try("somebody", "2001:db8:0:1::1")
    sign_in.take_try("somebody", "192.0.2.1")
    sign_in.take_try("somebody", "::ffff:192.0.2.1")
    assert SignInTries.objects.filter(subject="address:192.0.2.1").count() == 1


@pytest.mark.django_db(transaction=True)
def test_tries_at_the_same_time_are_counted_exactly() -> None:
    start, taken = threading.Barrier(8), []

    def attempt() -> None:
        start.wait()
        for _ in range(5):
            try:
                sign_in.take_try("ada", None)
            except sign_in.TooManyTries:
                continue
            taken.append(1)
        connection.close()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == sign_in.OF_PAIR


# Passwords ------------------------------------------------------------------------------------------------------------


def test_a_changed_password_ends_other_sessions(person: Make) -> None:
    ada = person("ada", "owner")
    ada.sign_in()
    other = Client()
    other.force_login(ada.user)
    new = {"old": PASSWORD, "password": "a loud yellow lamp", "again": "a loud yellow lamp"}

    def change(**fields: str) -> Any:
        ada.browser.get("/accounts/password")
        token = ada.browser.cookies["csrftoken"].value
        return ada.browser.post("/accounts/password", {**new, **fields}, headers={"X-CSRFToken": token})

    for wrong in ({"old": "x"}, {"again": "other"}, {"password": "short", "again": "short"}):
        assert change(**wrong).status_code == 400
    assert change().status_code == 302
    assert ada.browser.get("/accounts/").status_code == 200
    assert other.get("/accounts/").status_code == 302
    assert enter(Client(), "ada").status_code == 400
    assert enter(Client(), "ada", new["password"]).status_code == 302


def test_an_operators_link_sets_a_password_once(person: Make) -> None:
    ada = person("ada", "owner")
    path = password_link(ada.user).reveal().removeprefix("http://127.0.0.1:8000")
    new = {"password": "a loud yellow lamp", "again": "a loud yellow lamp"}
    browser = Client()
    assert "ada" in browser.get(path).content.decode()
    assert browser.post(path, {**new, "again": "x"}).status_code == 400
    assert browser.post(path, new).status_code == 302
    assert browser.get(path).status_code == 404
    assert enter(Client(), "ada", new["password"]).status_code == 302
    for wrong in ("/accounts/passwords/x/y", "/accounts/passwords/MQ/a-b", "/accounts/passwords/%ff/y"):
        assert browser.get(wrong).status_code == 404


def test_a_stranger_sees_only_their_own_account(person: Make, stranger: Person) -> None:
    person("ada", "owner")
    stranger.sign_in()
    page = stranger.browser.get("/accounts/").content.decode()
    assert "Globex" in page
    assert "Acme" not in page
    for path in ("/accounts/", "/accounts/password"):
        assert Client().get(path)["Location"] == f"{SIGN_IN}?next={path}"


# Sessions as callers of the management API ----------------------------------------------------------------------------


def test_a_session_calls_with_its_members_role(person: Make) -> None:
    owner, viewer = person("ada", "owner"), person("vera", "viewer")
    for somebody, status in ((owner, 200), (viewer, 403)):
        somebody.sign_in()
        assert somebody.call("get", "/api/audit").status_code == status
        assert somebody.call("get", "/api/members").status_code == 200
    assert Client().get("/api/members").status_code == 401


def test_what_changes_something_needs_the_csrf_token(person: Make) -> None:
    owner, viewer = person("ada", "owner"), person("vera", "viewer")
    owner.sign_in()
    assert viewer.member is not None
    path = f"/api/members/{viewer.member.public_id}"
    for headers in ({}, {"X-CSRFToken": "x" * 64}):
        answer = owner.browser.patch(path, {"role": "developer"}, content_type="application/json", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "csrf_failed")
    assert owner.call("patch", path, {"role": "developer"}).json()["role"] == "developer"
    entry = AuditEntry.objects.get(tenant=viewer.member.tenant, action="member.role_changed")
    assert (entry.actor_kind, entry.actor_name, entry.address) == ("member", "ada", "127.0.0.1")


def test_a_session_of_several_tenants_names_one(acme: Tenant, stranger: Person) -> None:
    other = make_tenant("initech")
    ada = make_person("ada", (acme, "owner"), (other, "viewer"))
    ada.sign_in()
    refused = ada.call("get", "/api/members")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Tenant")
    for slug, count in (("acme", 1), ("initech", 1)):
        found = ada.call("get", "/api/members", **{"X-Tenant": slug}).json()["data"]
        assert len(found) == count
    theirs, nothing = (ada.call("get", "/api/members", **{"X-Tenant": slug}) for slug in ("globex", "nothing"))
    assert theirs.status_code == nothing.status_code == 404
    assert theirs.content.replace(b"globex", b"nothing") == nothing.content


def test_a_stranger_reaches_nobody_through_a_session(person: Make, stranger: Person) -> None:
    ada = person("ada", "owner")
    assert ada.member is not None
    stranger.sign_in()
    path = f"/api/members/{ada.member.public_id}"
    nothing = "/api/members/01890000-0000-7000-8000-000000000000"
    for method, body in (("get", None), ("patch", {"role": "viewer"}), ("delete", None)):
        answers = [stranger.call(method, each, body) for each in (path, nothing)]
        assert [answer.status_code for answer in answers] == [404, 404]
    assert [row["username"] for row in stranger.call("get", "/api/members").json()["data"]] == ["mallory"]
    assert Member.objects.get(tenant=ada.member.tenant).role == "owner"


def test_whoever_is_removed_suspended_or_switched_off_is_out_at_once(acme: Tenant, person: Make) -> None:
    ada, eve, off = person("ada", "owner"), person("eve", "owner"), person("off", "owner")
    for somebody in (ada, eve, off):
        somebody.sign_in()
    assert ada.member is not None
    assert eve.call("delete", f"/api/members/{ada.member.public_id}").status_code == 204
    assert ada.call("get", "/api/members").status_code == 403
    get_user_model().objects.filter(pk=off.user.pk).update(is_active=False)
    assert off.call("get", "/api/members").status_code == 401
    Tenant.objects.filter(pk=acme.pk).update(state="suspended")
    assert eve.call("get", "/api/members").status_code == 403


def test_a_key_counts_alone_where_both_are_sent(person: Make) -> None:
    ada = person("ada", "owner")
    ada.sign_in()
    assert ada.browser.get("/api/members", headers={"Authorization": "Bearer x"}).status_code == 401
