"""The chat page in a real browser, on a real gateway."""

from __future__ import annotations

import re
import urllib.request

import pytest
from django.test import Client
from playwright.async_api import Browser, Page, expect

from tests.console.conftest import shoot
from tests.gateway.house import Actor, House, Process, wait_for

pytestmark = pytest.mark.browser


async def enter(page: Page, gateway: Process, actor: Actor) -> None:
    await page.goto(f"{gateway.url}/chat")
    await page.get_by_label("API key").fill(actor.secret)
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_label("Message")).to_be_visible()


async def most_tokens(page: Page, number: int) -> None:
    await page.get_by_text("Settings").click()
    await page.get_by_label("Max tokens").fill(str(number))
    await page.get_by_text("Settings").click()


async def test_a_conversation(page: Page, gateway: Process, house: House, acme: Actor, stranger: Actor) -> None:
    house.adapter(acme, "pirate")
    house.adapter(stranger, "secret")
    await page.goto(f"{gateway.url}/chat")
    await shoot(page, "door")
    await enter(page, gateway, acme)
    model = page.get_by_label("Model", exact=True)
    assert await model.locator("option").all_inner_texts() == [house.base.name, "acme/pirate"]
    await shoot(page, "empty")
    await model.select_option("acme/pirate")
    await page.get_by_label("Message").fill("What is the capital of France?")
    await page.get_by_label("Message").press("Enter")
    answer = page.locator(".answer .text")
    await expect(answer).to_contain_text("0 1 2")
    running = await answer.inner_text()
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(answer).not_to_have_text(running)  # it grows: the text streams
    await shoot(page, "streaming")
    await page.get_by_role("button", name="Stop").click()
    figures = page.locator(".answer .figures")
    await expect(figures).to_contain_text(re.compile(r"first token \d+ ms.*stopped"))
    row = wait_for(lambda: house.ledger(acme) and house.one_row(acme))
    assert row.outcome == "cancelled"

    await most_tokens(page, 4)
    await page.get_by_label("Message").fill("<b>And of Italy?</b>")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".answer .text").last).to_have_text(" 0 1 2 3")
    await expect(page.locator(".asked .text").last).to_have_text("<b>And of Italy?</b>")
    wanted = r"first token \d+ ms · [\d.]+ tokens/s · \d+ tokens read · 4 written · cut off at max tokens"
    await expect(figures.last).to_have_text(re.compile(wanted))
    await shoot(page, "answered")
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator(".turn")).to_have_count(0)


async def test_on_a_phone_in_the_dark(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    house.adapter(acme, "an-adapter-with-quite-a-long-name")
    await page.emulate_media(color_scheme="dark")
    await page.set_viewport_size({"width": 390, "height": 844})
    await enter(page, gateway, acme)
    await most_tokens(page, 60)
    await page.get_by_role("button", name="Why is the sky blue?").click()
    await expect(page.locator(".answer .figures")).to_contain_text("tokens/s")
    await shoot(page, "phone")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_errors_are_shown(chromium: Browser, gateway: Process, house: House) -> None:
    """Chromium itself logs the 401 here, so this page is not under the fixture's watch."""
    tight = house.actor("tight", requests_per_minute=1)
    page = await chromium.new_page()
    await page.goto(f"{gateway.url}/chat")
    await page.get_by_label("API key").fill("lpx_live_wrong")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.get_by_role("alert")).to_have_text("Incorrect API key provided.")
    await shoot(page, "wrong-key")
    await page.get_by_label("API key").fill(tight.secret)
    await page.get_by_role("button", name="Continue").click()
    await most_tokens(page, 3)
    for _ in range(2):
        await page.get_by_label("Message").fill("hi")
        await page.get_by_label("Message").press("Enter")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text(re.compile(r"requests_per_minute.*try again in [\d.]+ s"))
    await shoot(page, "limit")
    await page.close()


def test_the_policy_is_strict(gateway: Process) -> None:
    with urllib.request.urlopen(f"{gateway.url}/chat") as answer:
        policy = answer.headers["content-security-policy"]
        text = answer.read().decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<style" not in text
    assert not re.search(r"<script(?![^>]*src=)", text)
    assert not re.search(r"\son\w+=", text)
    assert not re.search(r"(src|href)=\"(https?:)?//", text)


def test_the_front_page_leads_to_the_console() -> None:
    answer = Client(headers={"Host": "localhost"}).get("/")
    assert (answer.status_code, answer["Location"]) == (302, "/console/")
