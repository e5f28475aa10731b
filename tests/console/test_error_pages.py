"""What people see where no page answers: unknown addresses, forms that are out of date, errors, and ended sessions."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from playwright.async_api import Browser, ViewportSize, expect

from tests.console.conftest import shoot
from tests.console.people import client_of, member, operator, sign_in
from tests.console.test_tenants_page import text_of
from tests.gateway.house import Actor, Process

BROWSER = {"Host": "localhost"}


@pytest.mark.parametrize("address", ["/console/nosuch", "/console/t/acme/nosuch", "/accounts/nosuch", "/nosuch"])
def test_unknown_addresses_have_a_page_with_ways_on(address: str, acme: Actor) -> None:
    for client in (
        client_of(member(acme.tenant)),
        client_of(operator(f"root-{address[-12:]}")),
        Client(headers=BROWSER),
    ):
        answer = client.get(address)
        assert answer.status_code == 404
        assert "no-store" in answer["Cache-Control"]
        assert "There is nothing here" in text_of(answer)
        assert 'href="/console/"' in answer.content.decode()
    part = client_of(member(acme.tenant)).get(address, headers={"HX-Request": "true", "HX-Target": "dialog-body"})
    assert part.status_code == 404
    assert "<html" not in part.content.decode(), "it is shown in a dialog"


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("/console", "/console/"),
        ("/console/t/acme", "/console/t/acme/"),
        ("/console/t/acme/keys/?q=a%20b", "/console/t/acme/keys?q=a%20b"),
        ("/chat/", "/chat"),
    ],
)
def test_a_last_slash_more_or_less_leads_to_the_page(address: str, page: str, acme: Actor) -> None:
    answer = client_of(member(acme.tenant)).get(address)
    assert (answer.status_code, answer["Location"]) == (302, page)


def test_a_last_slash_leads_nowhere_else(acme: Actor) -> None:
    client = client_of(member(acme.tenant))
    for address in (
        "//console",
        "//evil.example/console",
        "/console/nosuch/",
        "/api/keys/",
        "/console/t/globex/keys/x",
    ):
        answer = client.get(address)
        assert answer.status_code == 404 or answer["Location"].startswith("/console"), address
    assert client.post("/console/t/acme", {}).status_code == 404
    assert client.get("/console/t/globex", follow=True).status_code == 404, "a stranger's"


def test_a_method_that_an_address_does_not_take_has_a_page_too(acme: Actor) -> None:
    for client in (client_of(member(acme.tenant)), Client(headers=BROWSER)):
        sign_out = client.get("/accounts/sign-out")
        assert (sign_out.status_code, sign_out["Allow"]) == (405, "POST")
        assert "no-store" in sign_out["Cache-Control"]
        assert "takes forms and has no page of its own" in text_of(sign_out)
        assert 'href="/console/"' in sign_out.content.decode()
        home = client.put("/chat")
        assert (home.status_code, home["Allow"]) == (405, "GET, HEAD")
        assert "Nothing was changed" in text_of(home)
    page = client_of(member(acme.tenant)).post("/console/t/acme/usage")
    assert (page.status_code, page["Allow"]) == (405, "GET")
    assert "Nothing was changed" in text_of(page)
    api = Client(headers=BROWSER).put("/api/keys")
    assert (api.status_code, b"<html" in api.content) == (405, False), "the border's to answer"


@pytest.mark.parametrize("signed_in", [True, False])
def test_a_form_that_is_out_of_date_says_what_to_do(signed_in: bool, acme: Actor) -> None:
    client = Client(enforce_csrf_checks=True, headers=BROWSER)
    if signed_in:
        client.force_login(member(acme.tenant))
    form = "http://localhost/console/t/acme/keys/new"
    answer = client.post("/console/t/acme/keys/new", {"scope": "inference"}, headers={"Referer": form})
    assert answer.status_code == 403
    assert "This form is out of date" in text_of(answer)
    assert "Nothing was changed" in text_of(answer)
    assert f'href="{form}"' in answer.content.decode()
    elsewhere = client.post("/accounts/sign-out", headers={"Referer": "https://evil.example/form"})
    assert elsewhere.status_code == 403
    assert "evil.example" not in elsewhere.content.decode()


def test_an_error_needs_no_database(acme: Actor, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.console.breaking_urls"
    client = client_of(member(acme.tenant))
    client.raise_request_exception = False

    def refuse(execute: Any, sql: str, *rest: Any) -> Any:
        raise AssertionError(sql)

    with connection.execute_wrapper(refuse):
        answer = client.get("/console/breaks")
        changed = client.post("/console/breaks")
    assert (answer.status_code, changed.status_code) == (500, 500)
    assert "The server had an error." in text_of(answer)
    assert "look before you try again" in text_of(changed)
    assert "secret words" not in answer.content.decode()
    assert answer["Cache-Control"] == "no-store"


# Sessions that ended --------------------------------------------------------------------------------------------------

PAGE = "/console/t/acme/keys?q=a&state=active"


@pytest.mark.parametrize(
    ("current", "to"),
    [
        (f"http://localhost{PAGE}", "/accounts/sign-in?next=/console/t/acme/keys%3Fq%3Da%26state%3Dactive"),
        ("https://evil.example/console/", "/accounts/sign-in"),
        ("javascript:alert(1)", "/accounts/sign-in"),
        ("http://localhost:99999999/x", "/accounts/sign-in"),
        (None, "/accounts/sign-in"),
    ],
)
def test_a_part_leads_to_the_sign_in_page_and_back(current: str | None, to: str) -> None:
    headers = {**BROWSER, "HX-Request": "true"} | ({} if current is None else {"HX-Current-URL": current})
    part = Client(headers=headers).get("/console/t/acme/keys")
    assert (part.status_code, part["HX-Redirect"]) == (204, to)


def test_a_form_that_came_too_late_is_said_not_to_be_sent(acme: Actor) -> None:
    client = Client(headers=BROWSER)
    answer = client.post("/console/t/acme/keys/new", {"scope": "inference"})
    assert answer["Location"] == "/accounts/sign-in?next=/console/t/acme/keys/new&unsent=1"
    page = client.get(answer["Location"])
    assert "it was not sent and nothing was changed" in text_of(page)
    wrong = client.post("/accounts/sign-in", {"username": "x", "password": "y", "unsent": "1"})
    assert "it was not sent" in text_of(wrong), "also after a wrong password"
    assert "not sent" not in text_of(client.get(client.get("/console/t/acme/keys/new")["Location"]))
    assert client.post("/accounts/password", {"current": "x"})["Location"].endswith("next=/accounts/password&unsent=1")


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
async def test_a_form_from_before_leads_back_to_itself(chromium: Browser, gateway: Process, acme: Actor) -> None:
    """Without the fixture ``page``, which takes a refusal's status for a fault."""
    wide, phone = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=844)
    for name, context in (
        ("wide", await chromium.new_context(viewport=wide, color_scheme="light")),
        ("phone", await chromium.new_context(viewport=phone, color_scheme="dark")),
    ):
        page = await context.new_page()
        await sign_in(context, gateway.url, member(acme.tenant))
        await page.goto(f"{gateway.url}/console/t/acme/keys/new")
        await context.clear_cookies(name="csrftoken")
        await page.get_by_role("button", name="Issue").click()
        await expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
        await shoot(page, f"out-of-date-{name}")
        await page.get_by_role("link", name="Load the form again").click()
        await page.wait_for_url("**/keys/new")
        await page.get_by_role("button", name="Issue").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Your new key")
        await page.goto(f"{gateway.url}/console/t/acme/nosuch")
        await shoot(page, f"nowhere-{name}")
        await context.clear_cookies()
        await page.goto(f"{gateway.url}/console/nosuch")
        await shoot(page, f"nowhere-signed-out-{name}")
        await page.goto(f"{gateway.url}/accounts/sign-in?next=/console/&unsent=1")
        await shoot(page, f"unsent-{name}")
        await context.close()
