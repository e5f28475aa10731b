"""Parts of pages that follow by themselves leave the keyboard's focus, and how far a table is scrolled, as they are."""

from __future__ import annotations

from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from playwright.async_api import Locator, Page, expect

from fleet import samples
from tenants.callers import Role
from tenants.models import AdapterVersion
from tests.console.people import member, operator, sign_in
from tests.gateway.api import ledger
from tests.gateway.house import Actor, House, Process

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCROLLED = 60


async def scrolled(region: Locator) -> None:
    await region.evaluate("(region, left) => { region.scrollLeft = left; }", SCROLLED)
    assert await region.evaluate("region => region.scrollLeft") == SCROLLED, "the table is not wide enough to scroll"


async def test_the_overviews_figures_change_in_place(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    await sync_to_async(samples.take)()
    await sign_in(page.context, gateway.url, operator())
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{gateway.url}/console/overview")
    await expect(page.locator("#live")).to_have_text("live", timeout=10_000)
    region = page.get_by_role("region", name="Load of workers")
    await region.focus()
    await scrolled(region)
    tokens = page.locator("#now .card", has_text="Tokens in the last minute").locator(".value")
    ledger.ended(acme.key, timezone.now(), after=timedelta(0), completion_tokens=23)
    await expect(tokens).to_have_text("23", timeout=10_000)
    await expect(region).to_be_focused()
    assert await region.evaluate("region => region.scrollLeft") == SCROLLED


async def test_a_part_that_asks_again_changes_in_place(
    page: Page, gateway: Process, bare_house: House, acme: Actor
) -> None:
    bare_house.adapter(acme, "pirate")
    adapter = AdapterVersion.objects.get(adapter__tenant=acme.tenant).adapter
    versions = AdapterVersion.objects.filter(adapter__tenant=acme.tenant)
    for number, state in ((2, "ready"), (3, "pending")):
        AdapterVersion.objects.create(adapter=adapter, number=number, state=state, digest=f"{number:064x}")
    await sign_in(page.context, gateway.url, member(acme.tenant, Role.DEVELOPER))
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(f"{gateway.url}/console/t/acme/adapters/pirate")
    region, link = page.get_by_role("region", name="Versions"), page.get_by_role("link", name="Delete v2")
    await link.focus()
    await scrolled(region)
    node = await link.element_handle()
    AdapterVersion.objects.create(adapter=adapter, number=4, state="pending", digest=f"{4:064x}")
    await expect(page.get_by_role("link", name="v4", exact=True)).to_be_visible(timeout=10_000)
    await expect(link).to_be_focused()
    assert await link.evaluate("(link, node) => link === node", node), "another link took its place"
    assert await region.evaluate("region => region.scrollLeft") == SCROLLED
    await expect(page.locator("#adapter time[data-local]")).to_have_count(0)

    versions.filter(number=2).update(deleted_at=timezone.now())
    await expect(link).to_have_count(0, timeout=10_000)
    await expect(region).to_be_focused()
    versions.filter(number__gt=2).update(state="rejected")
    await expect(page.locator("[hx-trigger]")).to_have_count(0, timeout=10_000)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.wait_for_timeout(3_000)
    assert asked == [], "it still asks, although nothing is undecided"


async def test_a_part_that_asks_once_and_then_again_keeps_asking(page: Page, gateway: Process, house: House) -> None:
    """What it asks for and when are attributes of the part itself, and change with it."""
    await sign_in(page.context, gateway.url, operator())
    await page.goto(f"{gateway.url}/console/workers")
    part = page.locator("#fleet")
    await expect(part).to_have_attribute("hx-trigger", "every 10s")
    node = await part.element_handle()
    async with page.expect_response("**/console/workers?now=1", timeout=15_000):
        pass
    await expect(part).to_contain_text("As they are now")
    assert await part.evaluate("(part, node) => part === node", node)
