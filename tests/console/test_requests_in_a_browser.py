"""An owner has prompts and answers stored, sends a request, finds it, and sees its bar, its bill and its words."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Page, expect

from tenants.models import Payload
from tests.console.conftest import shoot
from tests.console.people import member, sign_in
from tests.console.request_rows import denial, ended_request
from tests.gateway.house import Actor, House, Process, wait_for
from tests.gateway.stub_worker import TIMED
from tests.gateway.test_completions import CHAT, body, post

pytestmark = [pytest.mark.browser]


async def test_a_request_is_found_with_its_times_its_bill_and_its_words(
    page: Page, gateway: Process, house: House, acme: Actor
) -> None:
    old = ended_request(house, acme, outcome="failed")
    refused = denial(acme)
    await sign_in(page.context, gateway.url, member(acme.tenant, name="ada"))
    at = f"{gateway.url}/console/t/acme"

    await page.goto(f"{at}/settings/payloads")
    await page.get_by_label("Keep each for (days)").fill("3")
    await shoot(page, "payloads-off")
    await page.get_by_role("button", name="Store them").click()
    await expect(page.get_by_role("status")).to_contain_text("stored for 3 days")
    await shoot(page, "payloads-on")

    status, _, headers = await post(gateway, CHAT, acme, body(house, seed=TIMED))
    assert status == 200
    await sync_to_async(wait_for)(Payload.objects.filter(tenant=acme.tenant).exists)

    await page.goto(f"{at}/requests")
    await expect(page.locator("tbody tr")).to_have_count(2)
    await shoot(page, "requests-filled")
    await page.get_by_label("State").select_option("failed")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("tbody a")).to_have_attribute("href", f"/console/t/acme/requests/{old.pk}")
    await page.get_by_label("State").select_option("completed")
    await expect(page.locator("tbody a")).to_have_attribute(
        "href", f"/console/t/acme/requests/{headers['x-request-id']}"
    )
    await page.locator("tbody a").click()
    await expect(page.get_by_role("img", name="Queue 12 ms, Prefill 31 ms")).to_be_visible()
    await expect(page.get_by_role("region", name="What was held and billed")).to_contain_text("5 tokens")
    await page.get_by_role("button", name="Show them").click()
    await expect(page.locator(".payload pre")).to_have_text(["hi", " 0 1 2 3 4"])
    await shoot(page, "payload-shown")

    await page.goto(f"{at}/denials")
    await shoot(page, "denials-filled")
    await page.get_by_label("Why was I refused?").fill(str(refused.last_request_id))
    await page.get_by_role("button", name="Look").click()
    await expect(page.get_by_role("status")).to_contain_text("tokens_per_minute of the account")

    await page.goto(f"{at}/settings/payloads")
    await page.get_by_role("button", name="Stop and delete…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("1 request's prompt and answers are deleted at once")
    await page.get_by_role("dialog").get_by_role("button", name="Stop and delete").click()
    await expect(page.get_by_role("status")).to_contain_text("what was is deleted")
    assert not await sync_to_async(Payload.objects.filter(tenant=acme.tenant).exists)()
