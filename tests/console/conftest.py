from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from tests.gateway.conftest import _orm_beside_a_loop, acme, gateway, stranger, stub
from tests.gateway.house import House

__all__ = ["_orm_beside_a_loop", "acme", "gateway", "stranger", "stub"]

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHOTS = os.environ.get("SCREENSHOTS")
"""A folder for pictures of the pages, for people."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """What a gateway's process has to see is committed. Other tests' rows are rolled back, which is quicker.

    Tests with a browser run on the loop on which it was started.
    """
    fixtures = getattr(item, "fixturenames", ())
    if "gateway" in fixtures:
        item.add_marker(pytest.mark.django_db(transaction=True), append=False)
    if "chromium" in fixtures:
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture
def bare_house(db: None, tiny_model_dir: Path) -> House:
    """No worker yet."""
    return House(tiny_model_dir)


@pytest.fixture
def house(bare_house: House, request: pytest.FixtureRequest) -> House:
    """With a worker where there is a gateway that asks it."""
    if "gateway" in request.fixturenames:
        bare_house.worker(request.getfixturevalue("stub").url, "stub")
    return bare_house


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests: starting one takes 1.4 s of processor time, and its driver, longer than many tests."""
    if not os.path.exists(CHROMIUM):  # noqa: ASYNC240 - once, before anything runs
        pytest.fail(f"no Chromium at {CHROMIUM}; set CHROMIUM")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def chromium(browser: Browser) -> AsyncIterator[Browser]:
    """For a test's own contexts. None is left: its pages would go on asking the gateway."""
    yield browser
    for context in browser.contexts:
        await context.close()


@pytest.fixture
def zone() -> str | None:
    """The reader's time zone, such as Asia/Kolkata; ``None``: this machine's."""
    return None


@pytest_asyncio.fixture(loop_scope="session")
async def page(chromium: Browser, zone: str | None) -> AsyncIterator[Page]:
    async with opened_page(chromium, zone) as page:
        yield page


@asynccontextmanager
async def opened_page(chromium: Browser, zone: str | None) -> AsyncIterator[Page]:
    """Fails the test for any console error, page error or violation of the content security policy."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 800}, timezone_id=zone)
    page = await context.new_page()
    problems: list[str] = []
    page.on("console", lambda said: problems.append(_shown(said)) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    await context.close()
    assert problems == []


def _shown(message: ConsoleMessage) -> str:
    """With the place: an answer that failed says only its status."""
    return f"{message.text} ({message.location['url']})"


async def shoot(page: Page, name: str) -> None:
    """A picture of the whole page, where somebody asked for pictures."""
    if SHOTS:
        await page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True, caret="initial")
