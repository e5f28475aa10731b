"""The chat page with a real model behind it: two voices of one base model on one page."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.console.conftest import chromium
from tests.end_to_end.conftest import RealHouse
from tests.gateway.house import Actor, Process

__all__ = ["chromium"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SHOTS = os.environ.get("SCREENSHOTS")


async def test_two_adapters_on_one_page(chromium: Browser, gateway: Process, house: RealHouse, acme: Actor) -> None:
    pirate, emoji = house.add(acme, "pirate"), house.add(acme, "emoji")
    page = await chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    await page.goto(gateway.url)
    await page.get_by_label("API key").fill(acme.secret)
    await page.get_by_role("button", name="Continue").click()
    answers = page.locator(".turn.assistant")
    for number, model in enumerate((pirate, emoji)):
        await page.get_by_label("Model").select_option(model)
        await page.get_by_label("Message").fill("What is the capital of France?")
        await page.get_by_label("Message").press("Enter")
        await expect(answers.nth(number).locator(".facts")).to_contain_text("tokens/s", timeout=60_000)
        await expect(answers.nth(number).locator(".who")).to_have_text(model)
    first, second = await answers.locator(".text").all_inner_texts()
    assert first
    assert second
    assert first != second
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / "chat.png")
    await page.close()
    assert [row.outcome for row in house.ledger(acme)] == ["completed", "completed"]
