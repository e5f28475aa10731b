"""What a sign-out leaves behind in the browser: nothing of what was looked at."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.console.people import member, sign_in
from tests.gateway.house import Actor, House, Process


@pytest.mark.browser
async def test_nothing_of_the_pages_is_left_in_the_tab(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    await sign_in(page.context, gateway.url, member(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/requests?q=something")
    assert "something" in await page.evaluate("JSON.stringify(sessionStorage)"), "or this test shows nothing"
    await page.locator("form[action*=sign-out]").evaluate("form => form.requestSubmit()")
    await page.wait_for_url("**/accounts/**")
    await expect(page.get_by_role("main")).to_be_visible()
    assert await page.evaluate("JSON.stringify(sessionStorage)") == "{}"
