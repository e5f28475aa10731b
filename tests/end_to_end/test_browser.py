"""The playground with a real model behind it: two voices of one base model side by side."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tenants.callers import Role
from tests.console.conftest import browser, chromium
from tests.console.people import member, sign_in
from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, Process

__all__ = ["browser", "chromium"]

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SHOTS = os.environ.get("SCREENSHOTS")


async def test_two_adapters_on_one_page(chromium: Browser, gateway: Process, house: RealHouse, acme: Actor) -> None:
    pirate, emoji = house.add(acme, "pirate"), house.add(acme, "emoji")
    context = await chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    await sign_in(context, gateway.url, member(acme.tenant, Role.DEVELOPER, "ada"))
    page = await context.new_page()
    await page.goto(f"{gateway.url}/console/t/acme/playground?model={pirate}")
    await page.get_by_role("button", name="Compare two").click()
    await page.get_by_label("Beside it").select_option(emoji)
    await page.get_by_text("Settings").click()
    await page.get_by_label("Show how likely each token was").check()
    await page.get_by_text("Settings").click()
    await page.get_by_label("Message").fill("What is the capital of France?")
    await page.get_by_label("Message").press("Enter")
    answers = page.locator(".answer")
    for number, model in enumerate((pirate, emoji)):
        answer = answers.nth(number)
        await expect(answer.locator(".figures")).to_contain_text("tokens/s", timeout=60_000)
        await expect(answer.locator(".voice")).to_have_text(model)
        scored = "".join(await answer.locator(".token").all_inner_texts())
        assert scored == await answer.locator(".text").inner_text(), "every character belongs to a token"
    first, second = await answers.locator(".text").all_inner_texts()
    assert first
    assert second
    assert first != second
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / "chat.png")
    await context.close()
    assert [row.outcome for row in house.ledger(acme)] == ["completed", "completed"]
