"""Times are typed and shown in the reader's zone, and sent as UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Browser, Page, expect

from tenants.models import ApiKey
from tests.console.conftest import shoot
from tests.console.people import member, operator, sign_in
from tests.console.request_rows import ended_request
from tests.gateway.house import Actor, House, Process

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@sync_to_async
def end_of(actor: Actor, name: str) -> datetime | None:
    return ApiKey.objects.get(tenant=actor.tenant, name=name).expires_at


@pytest.mark.parametrize("zone", ["Asia/Kolkata"])
async def test_when_a_key_ends(page: Page, gateway: Process, acme: Actor) -> None:
    await sign_in(page.context, gateway.url, await sync_to_async(member)(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/keys/new")
    end = page.get_by_label("Ends at (Asia/")
    await page.get_by_label("Name (optional)", exact=True).fill("ci")
    await end.fill("2090-01-31T12:30")
    await shoot(page, "key-in-kolkata")
    await page.get_by_role("button", name="Issue").click()
    await expect(page.get_by_role("heading", name="Your new key")).to_be_visible()
    assert await end_of(acme, "ci") == datetime(2090, 1, 31, 7, 0, tzinfo=UTC)

    key = await ApiKey.objects.aget(tenant=acme.tenant, name="ci")
    change = f"{gateway.url}/console/t/acme/keys/{key.public_id}/change"
    await page.goto(change)
    await expect(end).to_have_value("2090-01-31T12:30")
    await page.get_by_label("Name (optional)", exact=True).fill("cd")
    await page.goto(f"{gateway.url}/console/t/acme/keys")
    await page.go_back()
    await expect(end).to_have_value("2090-01-31T12:30")  # not 5:30 later, whatever the browser put back
    await page.get_by_label("Name (optional)", exact=True).fill("renamed")
    await page.get_by_role("button", name="Change").click()
    await page.wait_for_url(f"{gateway.url}/console/t/acme/keys/{key.public_id}")
    assert await end_of(acme, "renamed") == datetime(2090, 1, 31, 7, 0, tzinfo=UTC)
    await page.goto(change)
    await end.fill("")
    await page.get_by_role("button", name="Change").click()
    await page.wait_for_url(f"{gateway.url}/console/t/acme/keys/{key.public_id}")
    assert await end_of(acme, "renamed") is None


async def test_a_wrong_form_shows_again_what_was_typed(chromium: Browser, gateway: Process, house: House) -> None:
    """In a page of its own: an answer 400 stands in a browser's console, which the other one takes for a fault."""
    page = await chromium.new_page(timezone_id="Asia/Kolkata")
    await sign_in(page.context, gateway.url, await sync_to_async(operator)())
    await page.goto(f"{gateway.url}/console/settings/prices/new")
    for _ in range(2):
        await page.get_by_label("From (Asia/").fill("2001-01-01T00:30")
        await page.get_by_label("Prompt tokens, in").fill("1")
        await page.get_by_label("Generated tokens").fill("1")
        await page.get_by_role("button", name="Set the price").click()
        await expect(page.get_by_text("lies in the past")).to_be_visible()
        await expect(page.get_by_label("From (Asia/")).to_have_value("2001-01-01T00:30")


@pytest.mark.parametrize("zone", ["Europe/Berlin"])
async def test_an_hour_that_comes_twice_stays_what_it_was(page: Page, gateway: Process, acme: Actor) -> None:
    later = datetime(2090, 10, 29, 1, 30, tzinfo=UTC)  # half past two once more: clocks go back at 1:00 UTC
    key, _ = await sync_to_async(ApiKey.issue)(acme.tenant, name="ci", expires_at=later)
    await sign_in(page.context, gateway.url, await sync_to_async(member)(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/keys/{key.public_id}/change")
    await expect(page.get_by_label("Ends at (Europe/Berlin)")).to_have_value("2090-10-29T02:30")
    await page.get_by_label("Name (optional)", exact=True).fill("renamed")
    await page.get_by_role("button", name="Change").click()
    await page.wait_for_url(f"{gateway.url}/console/t/acme/keys/{key.public_id}")
    assert await end_of(acme, "renamed") == later


@pytest.mark.parametrize("zone", ["Asia/Kolkata"])
async def test_requests_since_then(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    now = datetime.now(UTC)
    await sync_to_async(ended_request)(house, acme, now - timedelta(hours=4))
    new = await sync_to_async(ended_request)(house, acme, now - timedelta(minutes=5))
    await sign_in(page.context, gateway.url, await sync_to_async(member)(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/requests")
    rows = page.get_by_role("region", name="Requests").get_by_role("row")
    await expect(rows).to_have_count(3)
    typed = now - timedelta(hours=1) + timedelta(hours=5, minutes=30)
    since = page.get_by_label("From (Asia/")
    await since.fill(typed.strftime("%Y-%m-%dT%H:%M"))
    await since.blur()
    await expect(rows).to_have_count(2)
    await expect(rows.nth(1).get_by_role("link").first).to_have_attribute("href", f"/console/t/acme/requests/{new.pk}")
    asked = parse_qs(urlsplit(page.url).query)
    assert asked["since"] == [(now - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")]
    await page.reload()
    await expect(since).to_have_value(typed.strftime("%Y-%m-%dT%H:%M"))
    async with page.expect_response(lambda answer: "since=" in answer.url) as again:
        await page.get_by_role("button", name="Show").click()
    assert parse_qs(urlsplit((await again.value).url).query)["since"] == asked["since"]
