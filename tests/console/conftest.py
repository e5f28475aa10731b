from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright

from tests.gateway.conftest import _orm_beside_a_loop, acme, bare_house, gateway, house, stranger, stub

__all__ = ["_orm_beside_a_loop", "acme", "bare_house", "gateway", "house", "stranger", "stub"]

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


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    if not os.path.exists(CHROMIUM):  # noqa: ASYNC240 - once, before anything runs
        pytest.fail(f"no Chromium at {CHROMIUM}; set CHROMIUM")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        await browser.close()
