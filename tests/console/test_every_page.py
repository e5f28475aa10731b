"""Every page of the console, for whoever is nobody, a stranger, of too low a role, a member and an operator."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from console.pages import At, Page, pages
from tenants.callers import Role
from tests.console.people import client_of, member, operator
from tests.console.samples import NOT_AN_OBJECT, OWNERS, SAMPLES
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db

ALL = sorted(pages())
AT_TENANTS = [name for name in ALL if At.TENANT in pages()[name].at]
AT_PLATFORM = [name for name in ALL if At.PLATFORM in pages()[name].at]
WITHOUT_A_FORM = {"account-models", "leave"}
"""Of an account that may use every base model already, and for an operator, who is no member."""


def filled(page: Page, house: House, owner: Actor) -> str:
    """The page's path with something of the owner's in it."""
    if "<" not in page.path:
        return page.path
    path = page.path
    for value in SAMPLES[page.name](house, owner):
        start, end = path.index("<"), path.index(">")
        path = f"{path[:start]}{value}{path[end + 1 :]}"
    return path


def here(page: Page, house: House, owner: Actor, slug: str | None = None) -> str:
    return f"/console/t/{slug or owner.tenant.slug}/{filled(page, house, owner)}"


def platform(page: Page, house: House, owner: Actor) -> str:
    return f"/console/{filled(page, house, owner)}"


def test_every_page_with_arguments_has_a_sample() -> None:
    assert {name for name in ALL if "<" in pages()[name].path} == SAMPLES.keys()
    assert SAMPLES.keys() >= NOT_AN_OBJECT


def methods(page: Page) -> list[str]:
    return ["get", "post"] if page.post else ["get"]


@pytest.mark.parametrize("name", ALL)
def test_nobody_is_asked_to_sign_in(name: str, house: House, acme: Actor) -> None:
    page = pages()[name]
    address = here(page, house, acme) if At.TENANT in page.at else platform(page, house, acme)
    for method in methods(page):
        answer = getattr(Client(headers={"Host": "localhost"}), method)(address)
        assert answer.status_code == 302
        assert answer["Location"].startswith("/accounts/sign-in?next=/console/")
    part = Client(headers={"Host": "localhost", "HX-Request": "true"}).get(address)
    assert (part.status_code, part["HX-Redirect"]) == (204, "/accounts/sign-in")


@pytest.mark.parametrize("name", AT_TENANTS)
def test_a_strangers_page_is_no_page(name: str, house: House, acme: Actor, stranger: Actor) -> None:
    page, theirs = pages()[name], client_of(member(stranger.tenant))
    for method in methods(page):
        answer = getattr(theirs, method)(here(page, house, acme))
        assert answer.status_code == 404
        assert acme.tenant.display_name not in answer.content.decode()
    unknown = theirs.get(here(page, house, acme, "nobody"))
    assert unknown.status_code == 404


@pytest.mark.parametrize("name", sorted(set(AT_TENANTS) & SAMPLES.keys() - NOT_AN_OBJECT))
def test_a_strangers_object_is_no_object(name: str, house: House, acme: Actor, stranger: Actor) -> None:
    """Neither its owner's stranger nor an operator finds it under another tenant's path."""
    page = pages()[name]
    address = here(page, house, acme, "stranger")
    for client in (client_of(member(stranger.tenant)), client_of(operator())):
        for method in methods(page):
            assert getattr(client, method)(address).status_code == 404


@pytest.mark.parametrize("name", AT_PLATFORM)
def test_the_platforms_pages_are_operators(name: str, house: House, acme: Actor) -> None:
    page = pages()[name]
    address = platform(page, house, acme)
    for method in methods(page):
        assert getattr(client_of(member(acme.tenant)), method)(address).status_code == 404
    assert client_of(operator()).get(address).status_code == 200


@pytest.mark.parametrize("name", AT_TENANTS)
def test_who_has_the_role_sees_it(name: str, house: House, acme: Actor) -> None:
    page = pages()[name]
    address = here(page, house, acme)
    for role in Role:
        client = client_of(member(acme.tenant, role))
        allowed = _rank(role) >= _rank(page.role)
        found = role == Role.OWNER or name not in OWNERS
        answer = client.get(address)
        assert answer.status_code == (403 if not allowed else 200 if found else 404)
        if not allowed:
            assert f"needs the role {page.role.value}" in answer.content.decode()
            assert f'href="{address}"' not in client.get(f"/console/t/{acme.tenant.slug}/overview").content.decode()
    assert client_of(operator()).get(address).status_code == 200


def _rank(role: Role) -> int:
    return [Role.VIEWER, Role.DEVELOPER, Role.OWNER].index(role)


@pytest.mark.parametrize("name", ALL)
def test_a_form_needs_its_token_and_no_page_takes_other_methods(name: str, house: House, acme: Actor) -> None:
    page, user = pages()[name], operator()
    address = here(page, house, acme) if At.TENANT in page.at else platform(page, house, acme)
    strict = Client(enforce_csrf_checks=True, headers={"Host": "localhost"})
    strict.force_login(user)
    assert strict.post(address).status_code == 403
    assert client_of(user).put(address).status_code == 405
    if not page.post:
        assert client_of(user).post(address).status_code == 405


@pytest.mark.parametrize("name", [name for name in ALL if pages()[name].post and name not in WITHOUT_A_FORM])
def test_a_form_that_came_empty_is_a_form_that_came(name: str, house: House, acme: Actor) -> None:
    """It is carried out or refused, not shown again as if nobody had sent it."""
    page, user = pages()[name], operator()
    address = here(page, house, acme) if At.TENANT in page.at else platform(page, house, acme)
    assert client_of(user).post(address).status_code in {302, 400, 409}


def test_members_of_a_suspended_account_are_told(house: House, acme: Actor) -> None:
    user = member(acme.tenant)
    acme.tenant.state = "suspended"
    acme.tenant.save()
    answer = client_of(user).get("/console/t/acme/overview")
    assert answer.status_code == 403
    assert "suspended" in answer.content.decode()
    assert "acme" in client_of(user).get("/console/").content.decode().lower()


def test_home_is_where_one_works(house: House, acme: Actor, stranger: Actor) -> None:
    assert client_of(operator()).get("/console/")["Location"] == "/console/overview"
    user: User = member(acme.tenant)
    assert client_of(user).get("/console/")["Location"] == "/console/t/acme/overview"
    both = member(acme.tenant)
    both.memberships.create(tenant=stranger.tenant, role=Role.VIEWER)
    found = client_of(both).get("/console/")
    assert found.status_code == 200
    assert "/console/t/stranger/overview" in found.content.decode()
