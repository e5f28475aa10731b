"""Accepting an invitation in a browser."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.utils import timezone

from tenants import invitations, proofs
from tenants.actors import Actor
from tenants.callers import Role
from tenants.models import AuditEntry, Identity, Invitation, Member, Tenant
from tests.gateway.accounts.conftest import Person, make_person, make_tenant

PAGE = "/accounts/invitation"
ACTOR = Actor("command", "tests")
NEW = {"password": "a quiet green lamp", "again": "a quiet green lamp"}
EMAIL = "ceo@globex.example"


def invite(tenant: Tenant, email: str = "ada@example.org", role: Role = Role.DEVELOPER) -> str:
    return "/accounts/invitations/" + invitations.invite(ACTOR, tenant, email, role)[1].reveal()


def post(browser: Client, **fields: str) -> Any:
    browser.get(PAGE)
    return browser.post(PAGE, fields, headers={"X-CSRFToken": browser.cookies["csrftoken"].value})


def test_somebody_new_chooses_a_password_and_is_a_member(acme: Tenant) -> None:
    browser = Client(enforce_csrf_checks=True)
    link = invite(acme)
    opened = browser.get(link)
    assert opened["Location"] == PAGE  # the token is in no address that a page could pass on
    assert "Acme" in browser.get(PAGE).content.decode()
    assert browser.post(PAGE, NEW).status_code == 403
    for wrong in ({"again": "other"}, {"password": "short", "again": "short"}, {"password": ""}):
        assert post(browser, **{**NEW, **wrong}).status_code == 400
    assert post(browser, **NEW)["Location"] == "/console/"
    assert "Acme" in browser.get("/accounts/").content.decode()
    member = Member.objects.get(tenant=acme)
    assert (member.user.username, member.user.email, member.role) == ("ada@example.org", "ada@example.org", "developer")
    assert member.user.check_password(NEW["password"])
    entry = AuditEntry.objects.get(tenant=acme, action="member.joined")
    assert (entry.actor_kind, entry.actor_name, entry.after) == ("member", "ada@example.org", {"role": "developer"})
    assert browser.get(PAGE).status_code == 404
    assert Client().get(link).status_code == 404


def test_somebody_signed_in_accepts(acme: Tenant, stranger: Person) -> None:
    stranger.sign_in()
    stranger.browser.get(invite(acme, "Mallory@example.org", Role.VIEWER))
    assert post(stranger.browser).status_code == 302
    assert Member.objects.get(tenant=acme, user=stranger.user).role == "viewer"
    assert stranger.call("get", "/api/members").status_code == 400  # of several tenants now


def test_an_invitation_is_for_its_own_address(acme: Tenant, stranger: Person) -> None:
    stranger.sign_in()
    stranger.browser.get(invite(acme))
    refused = post(stranger.browser)
    assert refused.status_code == 403
    assert not Member.objects.filter(tenant=acme).exists()
    assert Invitation.objects.get(tenant=acme).state == "open"
    for wrong in ("x" * 43, "x", "%00", "x" * 1000):
        assert Client().get(f"/accounts/invitations/{wrong}").status_code == 404
    assert Client().get(PAGE).status_code == 404


def test_an_address_with_an_account_signs_in_first(acme: Tenant) -> None:
    """Otherwise whoever holds the link would take the account over."""
    ada = make_person("ada")
    browser = Client(enforce_csrf_checks=True)
    browser.get(invite(acme))
    page = browser.get(PAGE).content.decode()
    assert "/accounts/sign-in?next=/accounts/invitation" in page
    assert post(browser, **NEW).status_code == 409
    assert not Member.objects.filter(tenant=acme).exists()
    browser.force_login(ada.user)
    browser.get(invite(acme))
    assert post(browser).status_code == 302
    assert Member.objects.get(tenant=acme).user == ada.user
    assert proofs.owner("ada@example.org") is None


# Claimed and proven addresses -----------------------------------------------------------------------------------------


def mailed(tenant: Tenant, email: str = EMAIL, role: Role = Role.OWNER) -> str:
    return "/accounts/invitations/" + proofs.mailed(invitations.invite(ACTOR, tenant, email, role)[1].reveal())


@pytest.fixture
def squatter(acme: Tenant) -> Client:
    """An owner of acme invited the address and opened the shown link."""
    browser = Client(enforce_csrf_checks=True)
    browser.get(invite(acme, EMAIL))
    assert post(browser, **NEW).status_code == 302
    return browser


def test_whoever_proves_an_address_takes_it_from_who_claimed_it(acme: Tenant, squatter: Client) -> None:
    globex = make_tenant("globex")
    browser = Client(enforce_csrf_checks=True)
    browser.get(mailed(globex))
    assert "without proving" in browser.get(PAGE).content.decode()
    assert post(browser, **NEW).status_code == 302
    ceo = Member.objects.get(tenant=globex).user
    assert (ceo.username, ceo.email, proofs.owner(EMAIL)) == (EMAIL, EMAIL, ceo)
    claim = Member.objects.get(tenant=acme).user
    assert claim.username.startswith("unproven-")
    assert (claim.email, claim.check_password(NEW["password"])) == ("", True)
    assert squatter.get("/accounts/").status_code == 302
    entry = AuditEntry.objects.get(tenant=acme, action="account.address_lost")
    assert (entry.actor_kind, entry.address, entry.after) == ("system", None, {"username": claim.username, "email": ""})
    browser = Client()
    browser.get(mailed(acme))
    assert "This address has an account" in browser.get(PAGE).content.decode()
    assert browser.post(PAGE, NEW).status_code == 409


def test_a_forwarded_link_is_worth_nothing_to_who_claimed_a_proven_address(acme: Tenant) -> None:
    globex = make_tenant("globex")
    squatter, ceo = make_person("mallory"), make_person("ceo")
    get_user_model().objects.filter(pk__in=[squatter.user.pk, ceo.user.pk]).update(email=EMAIL)
    Identity.objects.create(issuer=proofs.MAIL, subject=EMAIL, user=ceo.user)
    squatter.sign_in()
    for link in (invite, mailed):
        squatter.browser.get(link(globex, EMAIL))
        assert post(squatter.browser).status_code == 403
    assert not Member.objects.filter(tenant=globex).exists()


def test_somebody_signed_in_proves_the_address_by_a_mailed_link(acme: Tenant, squatter: Client) -> None:
    """It was theirs: nothing is lost."""
    globex = make_tenant("globex")
    squatter.get(mailed(globex))
    assert post(squatter).status_code == 302
    claim = Member.objects.get(tenant=acme).user
    assert proofs.owner(EMAIL) == claim == Member.objects.get(tenant=globex).user
    assert claim.username == EMAIL


def test_a_shown_link_proves_nothing_whatever_is_put_behind_it(acme: Tenant, squatter: Client) -> None:
    globex = make_tenant("globex")
    other = proofs.mailed("x" * 43).rpartition(".")[2]
    for more in ("", ".", f".{other}", ".é"):
        browser = Client(enforce_csrf_checks=True)
        browser.get(invite(globex, EMAIL) + more)
        assert "without proving" not in browser.get(PAGE).content.decode()
        assert post(browser, **NEW).status_code == 409
    assert proofs.owner(EMAIL) is None


def test_a_shown_links_page_does_not_tell_whether_there_is_an_account(acme: Tenant, squatter: Client) -> None:
    globex, pages = make_tenant("globex"), set()
    for email in (EMAIL, "cfo@globex.example"):
        browser = Client()
        browser.get(invite(globex, email))
        page = browser.get(PAGE).content.decode().replace(email, "…")
        pages.add(re.sub(r'value="[^"]*"', "", page))
    assert len(pages) == 1


@pytest.mark.django_db(transaction=True)
def test_of_several_who_prove_an_address_at_the_same_time_one_owns_it() -> None:
    users = [make_person(f"user-{number}").user for number in range(4)]
    start, outcomes = threading.Barrier(4), []

    def prove(user: Any) -> None:
        start.wait()
        try:
            proofs.prove(ACTOR, user, EMAIL)
            outcomes.append("proven")
        except Exception as error:
            outcomes.append(type(error).__name__)
        finally:
            connection.close()

    threads = [threading.Thread(target=prove, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["Conflict", "Conflict", "Conflict", "proven"]
    assert [user for user in users if proofs.owner(EMAIL) == user] == list(get_user_model().objects.filter(email=EMAIL))


# The end of an invitation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["expired", "revoked", "suspended"])
def test_what_is_no_longer_open_opens_nothing(end: str, acme: Tenant) -> None:
    browser, link = Client(enforce_csrf_checks=True), invite(acme)
    browser.get(link)
    browser.get(PAGE)
    rows = Invitation.objects.filter(tenant=acme)
    if end == "expired":
        rows.update(expires_at=timezone.now() - timedelta(seconds=1))
    elif end == "revoked":
        rows.update(revoked_at=timezone.now())
    else:
        Tenant.objects.filter(pk=acme.pk).update(state="suspended")
    token = browser.cookies["csrftoken"].value
    assert browser.post(PAGE, NEW, headers={"X-CSRFToken": token}).status_code == 404
    assert Client().get(link).status_code == 404
    assert not get_user_model().objects.filter(username="ada@example.org").exists()


def test_a_member_joins_once(acme: Tenant, stranger: Person) -> None:
    stranger.sign_in()
    link = invite(acme, "mallory@example.org")
    Member.objects.create(tenant=acme, user=stranger.user, role="viewer")
    stranger.browser.get(link)
    assert post(stranger.browser).status_code == 409
    assert Member.objects.get(tenant=acme).role == "viewer"


@pytest.mark.django_db(transaction=True)
def test_of_several_who_use_one_link_one_joins() -> None:
    tenant = make_tenant("acme")
    invitation, _ = invitations.invite(ACTOR, tenant, "ada@example.org", Role.VIEWER)
    start, outcomes = threading.Barrier(4), []

    def accept() -> None:
        start.wait()
        try:
            invitations.accept_with_password(invitation, NEW["password"], None)
            outcomes.append("joined")
        except Exception as error:
            outcomes.append(type(error).__name__)
        finally:
            connection.close()

    threads = [threading.Thread(target=accept) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["Conflict", "Conflict", "Conflict", "joined"]
    assert Member.objects.filter(tenant=tenant).count() == 1
