"""Signing in through an identity provider, and everything that must not let anybody in."""

from __future__ import annotations

import base64
import html
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
import requests
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client

from gateway.accounts import oidc
from gateway.config.provider import Provider
from tenants import identities, invitations, proofs
from tenants.actors import Actor
from tenants.callers import Role
from tenants.errors import Conflict
from tenants.models import AuditEntry, Identity, Invitation, Member, Tenant
from tests.gateway.accounts.conftest import Person, make_person, make_tenant
from tests.gateway.accounts.provider import CLIENT_ID, SECRET, OidcServer, new_key, served

ACTOR = Actor("command", "tests")
ADA = {"sub": "ada-1", "email": "Ada@example.org", "email_verified": True}
Make = Callable[..., Person]


@pytest.fixture
def server(settings: Any) -> Iterator[OidcServer]:
    with served() as made:
        made.person = dict(ADA)
        settings.OIDC = Provider(made.url, CLIENT_ID, SECRET, "the tests' provider", frozenset())
        yield made


@pytest.fixture
def ada(acme: Tenant, server: OidcServer) -> Person:
    """A member whose account the provider's ``ada-1`` opens."""
    made = make_person("ada", (acme, "owner"))
    identities.link(ACTOR, made.user, server.url, "ada-1")
    return made


def begin(browser: Client, page: str = "/accounts/oidc") -> str:
    """To the provider and back: the address at which the provider sends the browser to us."""
    sent = browser.get(page)
    assert sent.status_code == 302, sent.content
    back = requests.get(sent["Location"], allow_redirects=False, timeout=5).headers["Location"]
    assert back.startswith("http://testserver/accounts/oidc/callback?")
    return back.removeprefix("http://testserver")


def sign_in(browser: Client) -> Any:
    return browser.get(begin(browser))


def is_in(browser: Client) -> bool:
    return bool(browser.get("/accounts/").status_code == 200)


def invite(browser: Client, tenant: Tenant, email: str = "ada@example.org") -> None:
    token = invitations.invite(ACTOR, tenant, email, Role.DEVELOPER)[1].reveal()
    assert browser.get(f"/accounts/invitations/{token}").status_code == 302


# The ordinary way -----------------------------------------------------------------------------------------------------


def test_a_linked_identity_opens_its_account(ada: Person, server: OidcServer) -> None:
    answer = sign_in(ada.browser)
    assert (answer.status_code, answer["Location"]) == (302, "/console/")
    assert ada.call("get", "/api/members").json()["data"][0]["email"] == "ada@example.org"
    assert AuditEntry.objects.unscoped().filter(action="account.signed_in", actor_name="ada").exists()
    assert Identity.objects.get(issuer=server.url).last_used_at is not None
    assert server.refused == []


def test_a_visitors_session_is_short_and_a_members_is_not(ada: Person, server: OidcServer) -> None:
    """Whoever only asks for the way to the provider leaves nothing behind for long."""
    back = begin(ada.browser)
    assert 0 < ada.browser.session.get_expiry_age() <= 3600
    assert ada.browser.get(back).status_code == 302
    assert ada.browser.session.get_expiry_age() == settings.SESSION_COOKIE_AGE > 3600


def test_an_invited_address_gets_an_account(acme: Tenant, server: OidcServer) -> None:
    browser = Client()
    invite(browser, acme)
    assert "the tests&#x27; provider" in browser.get("/accounts/invitation").content.decode()
    assert sign_in(browser)["Location"] == "/console/"
    member = Member.objects.get(tenant=acme)
    assert (member.role, member.user.username, member.user.has_usable_password()) == (
        "developer",
        "ada@example.org",
        False,
    )
    assert {row.user for row in Identity.objects.all()} == {member.user}
    assert Invitation.objects.get(tenant=acme).state == "accepted"
    assert browser.get("/accounts/password").status_code == 404
    again = Client()
    assert sign_in(again).status_code == 302
    assert is_in(again)


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        ("/console/t/acme/keys?q=a&state=active", "/console/t/acme/keys?q=a&state=active"),
        ("https://evil.example/console/", "/console/"),
        ("//evil.example/", "/console/"),
        ("", "/console/"),
    ],
)
def test_somebody_comes_back_to_where_they_were(ada: Person, server: OidcServer, wanted: str, reached: str) -> None:
    page = ada.browser.get("/accounts/sign-in", {"next": wanted}).content.decode()
    (link,) = re.findall(r'href="(/accounts/oidc[^"]*)"', page)
    assert ada.browser.get(begin(ada.browser, html.unescape(link)))["Location"] == reached
    assert sign_in(ada.browser)["Location"] == "/console/", "once"


def test_where_to_go_on_is_a_page_of_ours_whoever_made_the_link(ada: Person, server: OidcServer) -> None:
    back = begin(ada.browser, "/accounts/oidc?next=https://evil.example/")
    assert ada.browser.get(back)["Location"] == "/console/"


def test_an_address_that_is_only_in_userinfo_counts(ada: Person, server: OidcServer) -> None:
    server.person = {"sub": "ada-1"}
    server.userinfo = ADA
    assert sign_in(ada.browser)["Location"] == "/console/"
    server.userinfo = {**ADA, "sub": "somebody else"}
    other = Client()
    assert sign_in(other).status_code == 400
    assert not is_in(other)


def test_new_keys_of_the_provider_are_fetched(ada: Person, server: OidcServer) -> None:
    assert sign_in(Client()).status_code == 302
    server.key, server.kid = new_key(), "second"
    assert sign_in(ada.browser).status_code == 302
    assert is_in(ada.browser)


def test_without_a_provider_there_is_no_such_page(db: None) -> None:
    for path in ("/accounts/oidc", "/accounts/oidc/callback"):
        assert Client().get(path).status_code == 404
    assert "Continue with" not in Client().get("/accounts/sign-in").content.decode()


# Who has no account ---------------------------------------------------------------------------------------------------


def test_an_address_opens_no_account(acme: Tenant, server: OidcServer) -> None:
    """Neither an account with a password, nor one that another identity opened, nor with an invitation."""
    made = make_person("ada", (acme, "owner"))
    proofs.prove(ACTOR, made.user, "ada@example.org")
    for invited in (False, True):
        browser = Client()
        if invited:
            Member.objects.filter(tenant=acme).delete()
            invite(browser, acme)
        assert sign_in(browser).status_code == 403
        assert not is_in(browser)
    identities.link(ACTOR, made.user, server.url, "ada-0")
    identities.link(ACTOR, made.user, "https://other.example.org", "ada-1")
    assert sign_in(Client()).status_code == 403
    assert get_user_model().objects.count() == 1


def test_a_verified_address_wins_over_a_claimed_one(acme: Tenant, server: OidcServer) -> None:
    squatter = make_person("ada", (make_tenant("globex"), "owner"))
    squatter.sign_in()
    browser = Client()
    invite(browser, acme)
    assert sign_in(browser).status_code == 302
    squatter.user.refresh_from_db()
    assert (squatter.user.username, squatter.user.email, is_in(squatter.browser)) == ("ada", "", False)
    assert proofs.owner("ada@example.org") == Member.objects.get(tenant=acme).user


def test_a_provider_does_not_hand_over_an_address_that_another_account_proved(ada: Person, server: OidcServer) -> None:
    other = make_person("eve")
    proofs.prove(ACTOR, other.user, "eve@example.org")
    server.person = {**ADA, "email": "eve@example.org"}
    assert sign_in(ada.browser).status_code == 302
    ada.user.refresh_from_db()
    assert ada.user.email == "ada@example.org"
    assert proofs.owner("eve@example.org") == other.user


def test_an_invitation_is_accepted_by_its_own_address_alone(acme: Tenant, server: OidcServer) -> None:
    browser = Client()
    invite(browser, acme, "grace@example.org")
    assert sign_in(browser).status_code == 403
    assert not get_user_model().objects.exists()
    assert Invitation.objects.get(tenant=acme).state == "open"
    server.person = {**ADA, "sub": "grace-1", "email": "grace@example.org"}
    assert sign_in(browser).status_code == 302
    assert Member.objects.get(tenant=acme).user.username == "grace@example.org"


def test_only_some_domains_may_come(ada: Person, server: OidcServer, settings: Any) -> None:
    for domains, status in ((frozenset({"example.com"}), 400), (frozenset({"example.org"}), 302)):
        settings.OIDC = Provider(server.url, CLIENT_ID, SECRET, "x", domains)
        assert sign_in(Client()).status_code == status


def test_an_account_that_is_switched_off_stays_so(ada: Person) -> None:
    ada.user.is_active = False
    ada.user.save()
    assert sign_in(ada.browser).status_code == 403
    assert not is_in(ada.browser)


def test_an_identity_belongs_to_one_account(ada: Person, server: OidcServer) -> None:
    with pytest.raises(Conflict):
        identities.link(ACTOR, make_person("eve").user, server.url, "ada-1")


# Who is not believed --------------------------------------------------------------------------------------------------


def unsigned(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another"},
        {"aud": ["another", "third"]},
        {"aud": "another", "azp": CLIENT_ID},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"aud": None},
        {"iss": "https://other.example.org"},
        {"iss": None},
        {"exp": 1_000_000_000},
        {"exp": None},
        {"iat": 4_000_000_000, "exp": 4_000_000_300},
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 256},
        {"sub": 7},
        {"email": None},
        {"email": "ada\0@example.org"},
        {"email": ["ada@example.org"]},
        {"email_verified": False},
        {"email_verified": "true"},
        {"email_verified": None},
    ],
    ids=str,
)
def test_a_wrong_claim_lets_nobody_in(claims: dict[str, Any], ada: Person, server: OidcServer) -> None:
    server.claims = claims
    server.userinfo = {"sub": "ada-1"}
    assert sign_in(ada.browser).status_code == 400
    assert not is_in(ada.browser)


def test_a_wrong_signature_lets_nobody_in(ada: Person, server: OidcServer) -> None:
    other = new_key()
    for sign in (
        lambda claims: jwt.encode(claims, other, algorithm="RS256", headers={"kid": server.kid}),
        lambda claims: jwt.encode(claims, other, algorithm="RS256", headers={"kid": "unknown"}),
        lambda claims: jwt.encode(claims, SECRET.ljust(32), algorithm="HS256"),
        unsigned,
        lambda claims: server.signed(claims)[:-4] + "AAAA",
        lambda claims: "no token at all",
        lambda claims: None,
    ):
        server.sign = sign
        assert sign_in(ada.browser).status_code == 400
        assert not is_in(ada.browser)


def test_a_code_of_another_provider_is_not_taken(ada: Person, server: OidcServer) -> None:
    server.answer = {"iss": "https://other.example.org"}
    assert sign_in(ada.browser).status_code == 400
    assert len(server.codes) == 1  # it was not even tried
    server.answer = {"iss": server.url}
    assert sign_in(ada.browser).status_code == 302


def test_a_provider_that_always_says_its_name_has_to(ada: Person, server: OidcServer) -> None:
    server.metadata = {"authorization_response_iss_parameter_supported": True}
    assert sign_in(ada.browser).status_code == 400
    server.answer = {"iss": server.url}
    assert sign_in(ada.browser).status_code == 302


@pytest.mark.parametrize(
    "metadata",
    [{"issuer": "https://other.example.org"}, {"issuer": None}, {"jwks_uri": None, "token_endpoint": None}],
    ids=str,
)
def test_a_provider_that_is_another_is_not_asked(metadata: Any, ada: Person, server: OidcServer) -> None:
    server.metadata = metadata
    answer = ada.browser.get("/accounts/oidc")
    if answer.status_code == 302:  # what is missing shows later
        answer = ada.browser.get(begin(ada.browser))
    assert answer.status_code == 400
    assert not is_in(ada.browser)


def test_state_belongs_to_one_browser_and_one_use(ada: Person, server: OidcServer) -> None:
    back = begin(ada.browser)
    assert Client().get(back).status_code == 400
    query = parse_qs(urlsplit(back).query)
    for wrong in (f"code={query['code'][0]}", f"code={query['code'][0]}&state=x", "state=x", "", "error=access_denied"):
        assert ada.browser.get(f"/accounts/oidc/callback?{wrong}").status_code == 400
    assert not is_in(ada.browser)
    assert ada.browser.get(back).status_code == 302
    other = Client()
    assert ada.browser.get(back).status_code == 400
    assert not is_in(other)


def test_a_stolen_code_is_worthless_in_another_browser(ada: Person, server: OidcServer) -> None:
    """PKCE: the thief's browser has a state and a verifier of its own."""
    stolen = parse_qs(urlsplit(begin(ada.browser)).query)["code"][0]
    thief = Client()
    own = parse_qs(urlsplit(begin(thief)).query)
    assert thief.get("/accounts/oidc/callback", {"code": stolen, "state": own["state"][0]}).status_code == 400
    assert server.refused == ["verifier"]
    assert not is_in(thief)


def test_a_provider_that_is_away_is_an_answer_in_words(acme: Tenant, settings: Any) -> None:
    settings.OIDC = Provider("http://127.0.0.1:9", CLIENT_ID, SECRET, "x", frozenset())
    began = time.monotonic()
    answer = Client().get("/accounts/oidc")
    assert (answer.status_code, b"Try again" in answer.content) == (400, True)
    assert time.monotonic() - began < 10


def test_nothing_secret_is_logged(ada: Person, server: OidcServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    server.claims = {"nonce": "another"}
    back = begin(ada.browser)
    code = parse_qs(urlsplit(back).query)["code"][0]
    ada.browser.get(back)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("gateway", "tenants"))]
    assert any("refused sign-in" in line for line in ours)
    assert not any(code in line or SECRET in line for line in ours)
    assert SECRET not in repr(oidc.client().__dict__)
