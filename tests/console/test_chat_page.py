"""The chat page in a real browser, on a real gateway."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.gateway.house import Actor, House, Process, wait_for

pytestmark = pytest.mark.browser

SHOTS = os.environ.get("SCREENSHOTS")
"""A folder for pictures of the page, for people."""


@pytest.fixture
async def page(chromium: Browser) -> AsyncIterator[Page]:
    """Fails the test for any console error, page error or violation of the content security policy."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 800})
    page = await context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    await context.close()
    assert problems == []


async def shoot(page: Page, name: str) -> None:
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png")


async def enter(page: Page, gateway: Process, actor: Actor) -> None:
    await page.goto(gateway.url)
    await page.get_by_label("API key").fill(actor.secret)
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_label("Message")).to_be_visible()


async def test_a_conversation(page: Page, gateway: Process, house: House, acme: Actor, stranger: Actor) -> None:
    house.adapter(acme, "pirate")
    house.adapter(stranger, "secret")
    await page.goto(gateway.url)
    await shoot(page, "door")
    await enter(page, gateway, acme)
    options = await page.get_by_label("Model").locator("option").all_inner_texts()
    assert options == [house.base.name, "acme/pirate"]
    await shoot(page, "empty")
    await page.get_by_label("Model").select_option("acme/pirate")
    await page.get_by_label("Message").fill("What is the capital of France?")
    await page.get_by_label("Message").press("Enter")
    answer = page.locator(".turn.assistant .text")
    await expect(answer).to_contain_text("0 1 2")
    running = await answer.inner_text()
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(answer).not_to_have_text(running)  # it grows: the text streams
    await shoot(page, "streaming")
    await page.get_by_role("button", name="Stop").click()
    facts = page.locator(".turn.assistant .facts")
    await expect(facts).to_contain_text(re.compile(r"first token \d+ ms.*stopped"))
    row = wait_for(lambda: house.ledger(acme) and house.one_row(acme))
    assert row.outcome == "cancelled"

    await page.get_by_text("Options").click()
    await page.get_by_label("Most tokens").fill("4")
    await page.get_by_label("Message").fill("<b>And of Italy?</b>")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".turn.assistant .text").last).to_have_text(" 0 1 2 3")
    await expect(page.locator(".turn.user .text").last).to_have_text("<b>And of Italy?</b>")
    await expect(facts.last).to_contain_text(re.compile(r"first token \d+ ms · [\d.]+ tokens/s · \d+ \+ 4 tokens"))
    await shoot(page, "answered")
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".turn")).to_have_count(0)


async def test_on_a_phone_in_the_dark(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    house.adapter(acme, "an-adapter-with-quite-a-long-name")
    await page.emulate_media(color_scheme="dark")
    await page.set_viewport_size({"width": 390, "height": 844})
    await enter(page, gateway, acme)
    await page.get_by_text("Options").click()
    await page.get_by_label("Most tokens").fill("60")
    await page.get_by_text("Options").click()
    await page.get_by_role("button", name="Why is the sky blue?").click()
    await expect(page.locator(".turn.assistant .facts")).to_contain_text("tokens/s")
    await shoot(page, "phone")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_errors_are_shown(chromium: Browser, gateway: Process, house: House) -> None:
    """Chromium itself logs the 401 here, so this page is not under the fixture's watch."""
    tight = house.actor("tight", requests_per_minute=1)
    page = await chromium.new_page()
    await page.goto(gateway.url)
    await page.get_by_label("API key").fill("lpx_live_wrong")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("alert")).to_have_text("Incorrect API key provided.")
    await shoot(page, "wrong-key")
    await page.get_by_label("API key").fill(tight.secret)
    await page.get_by_role("button", name="Continue").click()
    await page.get_by_text("Options").click()
    await page.get_by_label("Most tokens").fill("3")
    for _ in range(2):
        await page.get_by_label("Message").fill("hi")
        await page.get_by_label("Message").press("Enter")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("requests_per_minute")
    await shoot(page, "limit")
    await page.close()


def test_the_policy_is_strict(gateway: Process) -> None:
    with urllib.request.urlopen(gateway.url) as answer:
        policy = answer.headers["content-security-policy"]
        text = answer.read().decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<style" not in text
    assert not re.search(r"<script(?![^>]*src=)", text)
    assert not re.search(r"\son\w+=", text)
    assert not re.search(r"(src|href)=\"(https?:)?//", text)
