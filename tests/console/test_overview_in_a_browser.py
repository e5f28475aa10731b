"""The overview and usage, as somebody looks at them while requests go through."""

from __future__ import annotations

from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from playwright.async_api import Page, expect

from fleet import samples
from tenants import rollups
from tenants.models import Denial
from tests.console.conftest import shoot
from tests.console.people import member, operator, sign_in
from tests.gateway.api import ledger
from tests.gateway.house import Actor, House, Process

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def traffic(actor: Actor) -> None:
    """A day of it."""
    now = timezone.now()
    version = ledger.adapter(actor.tenant, "pirate")
    for hour in range(20):
        for number in range(1 + hour % 5):
            ledger.ended(
                actor.key,
                now - timedelta(hours=hour, minutes=3),
                completion_tokens=50 * hour + 7,
                prompt_tokens=300,
                cost=12_345 * (number + 1),
                version=version if number % 2 else None,
                outcome="failed" if number == 4 else "completed",
            )
    Denial.objects.create(
        tenant=actor.tenant,
        key=actor.key,
        hour=now.replace(minute=0, second=0, microsecond=0),
        code="rate_limit_exceeded",
        limit="requests_per_minute",
        subject="tenant",
        count=42,
        last_at=now,
        last_request_id=ledger.request(actor.key, now).pk,
        last_model="tiny",
        last_message="too fast",
    )


async def test_the_overview_lives(page: Page, gateway: Process, house: House, acme: Actor, stranger: Actor) -> None:
    traffic(acme)
    rollups.catch_up()
    await sync_to_async(samples.take)()
    await sign_in(page.context, gateway.url, operator())
    for place in ("", "t/acme/"):
        await page.goto(f"{gateway.url}/console/{place}overview")
        await expect(page.locator("#live")).to_have_text("live", timeout=10_000)
        await expect(page.locator(".plot canvas").first).to_be_visible()
        tokens = page.locator("#now .card", has_text="Tokens in the last minute").locator(".value")
        before = int((await tokens.inner_text()).replace("\u202f", ""))
        ledger.ended(acme.key, timezone.now(), after=timedelta(0), completion_tokens=23)
        await expect(tokens).to_have_text(str(before + 23), timeout=10_000)
        await pictures(page, f"overview{'-tenant' if place else ''}")
    await page.goto(f"{gateway.url}/console/t/stranger/overview")
    await expect(page.get_by_role("heading", name="First steps")).to_be_visible()
    await pictures(page, "overview-new")


async def test_whoever_leaves_at_once_sees_no_error(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    """The page goes away, or is hidden, while its connection is opened: closing that would be an error."""
    await sign_in(page.context, gateway.url, operator())
    left = "addEventListener('DOMContentLoaded', () => dispatchEvent(new Event('pagehide')))"
    await page.add_init_script(left)  # modules have run by then, and nothing can have answered
    await page.goto(f"{gateway.url}/console/overview")
    await expect(page.locator("#live")).to_have_text("live", timeout=10_000)


async def test_usage_is_charted_searched_and_saved(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    traffic(acme)
    acme.tenant.budget_hard = 10_000_000
    acme.tenant.save()
    await sign_in(page.context, gateway.url, member(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/usage?period=7d")
    await expect(page.locator(".plot canvas").first).to_be_visible()
    row = page.get_by_role("row", name="acme/pirate")
    await expect(row).to_contain_text("USD")
    await pictures(page, "usage")
    await page.locator("select[name=by]").select_option("key")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("row", name=acme.key.public_id)).to_be_visible()
    async with page.expect_download() as started:
        await page.get_by_role("button", name="CSV", exact=True).click()
    saved = await started.value
    assert saved.suggested_filename.startswith("usage-acme-")
    assert acme.key.public_id in (await saved.path()).read_text()
    await page.goto(f"{gateway.url}/console/t/acme/usage?period=last-month")
    await pictures(page, "usage-empty")


async def pictures(page: Page, name: str) -> None:
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            await page.set_viewport_size({"width": width, "height": 844})
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await shoot(page, f"{name}-{width}-{scheme}")
    await page.set_viewport_size({"width": 1280, "height": 844})
