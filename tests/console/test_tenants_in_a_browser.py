"""An operator makes an account, limits it, invites its first owner and suspends it."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tenants.models import Tenant
from tests.console.conftest import shoot
from tests.console.people import operator, sign_in
from tests.gateway.house import House, Process

pytestmark = [pytest.mark.browser, pytest.mark.slow]


async def test_an_account_from_its_making_to_its_suspension(page: Page, gateway: Process, house: House) -> None:
    await sign_in(page.context, gateway.url, operator())
    await page.goto(f"{gateway.url}/console/tenants")
    await page.get_by_role("button", name="New account").click()
    await page.get_by_label("Short name").fill("acme")
    await page.get_by_label("Name (optional)", exact=True).fill("Acme Ltd")
    await expect(page.get_by_label(house.base.name)).to_be_checked()
    await page.get_by_role("button", name="Create it").click()
    await expect(page.get_by_role("heading", name="Acme Ltd")).to_be_visible()

    await page.get_by_role("button", name="Limits", exact=True).click()
    await page.get_by_label("Requests per minute").fill("60")
    await page.get_by_label("Budget that stops").fill("12.5")
    await shoot(page, "limits-filled")
    await page.get_by_role("button", name="Set them").click()
    row = page.get_by_role("row", name="Requests per minute")
    await expect(row).to_contain_text("own")
    await expect(page.get_by_role("row", name="Budget that stops")).to_contain_text("12.50 USD")
    await shoot(page, "account-limited")
    Tenant.objects.filter(slug="acme").update(requests_per_minute=77)
    await expect(row).to_contain_text("77", timeout=15_000)  # by itself

    await page.get_by_role("link", name="invite one").click()
    await page.get_by_label("E-mail address").fill("ada@example.org")
    await page.get_by_label("Role").select_option("owner")
    await page.get_by_role("button", name="Invite").click()
    await expect(page.get_by_label("The link")).to_have_value(re.compile(r"/accounts/invitations/[\w-]{43}$"))
    await shoot(page, "invited")
    await page.get_by_role("button", name="Done").click()
    await expect(page.get_by_role("row", name="ada@example.org")).to_contain_text("open")

    await page.get_by_role("link", name="Account", exact=True).click()
    await page.get_by_role("button", name="Suspend", exact=True).click()
    question = page.get_by_role("dialog")
    await expect(question).to_contain_text("0 running requests of it will end")
    await shoot(page, "suspend-dialog")
    await question.get_by_role("button", name="Leave it").click()
    await expect(question).to_be_hidden()
    await page.get_by_role("button", name="Suspend", exact=True).click()
    await question.get_by_label("Why").fill("invoice unpaid")
    await question.get_by_role("button", name="Suspend it").click()
    await expect(page.get_by_text("This account is suspended")).to_be_visible()
    await page.goto(f"{gateway.url}/console/tenants")
    await page.get_by_label("Short name or name").press_sequentially("nosuch")
    await expect(page.get_by_text("No account is like this")).to_be_visible()
    await page.get_by_label("Short name or name").fill("")
    await page.get_by_label("State").select_option("suspended")
    await expect(page.get_by_role("row", name="acme")).to_contain_text("suspended")
