"""Takes the README's pictures of the console from a running demo.

    make demo                                                    # in one terminal
    .venv/bin/python examples/screenshots.py [--data var] [--out docs/images]

Signs in as the demo's operator, asks both tenants something so that there is something to see, and writes one small PNG
a screen. Needs Chromium (``CHROMIUM``, or /usr/bin/chromium) and what ``make test`` installs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Page, async_playwright, expect

MOST_BYTES = 150_000
SCREEN = {"width": 1280, "height": 800}
QUESTIONS = ("What is the capital of France?", "How do I make a cup of tea?", "Why is the sky blue?")


async def traffic(demo: dict[str, Any]) -> None:
    """A few requests of each tenant, under each of its adapters and under none."""
    async with httpx.AsyncClient(base_url=demo["url"], timeout=120) as client:
        for tenant in demo["tenants"]:
            headers = {"Authorization": f"Bearer {tenant['api_key']}"}
            for model in (*tenant["adapters"], demo["base_model"]):
                for question in QUESTIONS:
                    messages = [{"role": "user", "content": question}]
                    body = {"model": model, "messages": messages, "max_tokens": 40}
                    answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                    answer.raise_for_status()


async def sign_in(page: Page, demo: dict[str, Any]) -> None:
    await page.goto(f"{demo['url']}/console/")
    await page.get_by_label("E-mail address or user name").fill(demo["admin"]["user"])
    await page.get_by_label("Password").fill(demo["admin"]["password"])
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


async def two_answers(adapter: str, page: Page) -> None:
    """The playground with an adapter beside another model, both with a short answer."""
    await page.get_by_role("button", name="Compare two").click()
    await page.get_by_label("Beside it").select_option(label=adapter)
    await page.get_by_text("Settings", exact=True).last.click()
    await page.get_by_label("Max tokens").fill("60")
    await page.get_by_text("Settings", exact=True).last.click()
    await page.get_by_label("Message").fill("How do I make a cup of tea?")
    await page.get_by_label("Message").press("Enter")
    for number in range(2):
        figures = page.locator(".answer").nth(number).locator(".figures")
        await expect(figures).to_contain_text("written", timeout=120_000)
    await page.evaluate("scrollTo(0, 0)")


async def live(page: Page) -> None:
    await expect(page.locator("#live.on")).to_be_visible()
    await page.wait_for_timeout(3000)  # the first look may have been before the workers answered


async def summed(page: Page) -> None:
    """Usage of everybody, which is summed each minute."""
    for _ in range(30):
        if await page.get_by_role("region", name="Usage by").count():
            return
        await page.wait_for_timeout(5000)
        await page.reload()
    raise SystemExit("no usage after 150 s: does Celery run?")


async def first_request(page: Page) -> None:
    await page.get_by_role("region", name="Requests").get_by_role("rowheader").first.get_by_role("link").click()
    await expect(page.get_by_role("heading", name="Request", level=1)).to_be_visible()


def screens(demo: dict[str, Any]) -> dict[str, tuple[str, Callable[[Page], Awaitable[None]] | None]]:
    """By the picture's name: the page, and what is done there before."""
    tenant = next(tenant for tenant in demo["tenants"] if tenant["adapters"])
    here, adapter = f"/console/t/{tenant['name']}", tenant["adapters"][0].split("/")[1]
    return {
        "playground": (f"{here}/playground", partial(two_answers, tenant["adapters"][0])),
        "request": (f"{here}/requests", first_request),
        "adapter": (f"{here}/adapters/{adapter}", None),
        "usage": ("/console/usage", summed),
        "tenants": ("/console/tenants", None),
        "workers": ("/console/workers", None),
        "keys": (f"{here}/keys", None),
        "overview": ("/console/overview", live),
    }


async def take(demo: dict[str, Any], out: Path) -> None:
    async with async_playwright() as driver:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = await browser.new_page(viewport=SCREEN, color_scheme="light", reduced_motion="reduce")  # type: ignore[arg-type]
        await sign_in(page, demo)
        for name, (address, act) in screens(demo).items():
            await page.goto(demo["url"] + address)
            if act is not None:
                await act(page)
            await page.wait_for_timeout(1500)  # charts draw themselves, live figures arrive
            file = out / f"{name}.png"
            await page.screenshot(path=file)
            size = file.stat().st_size
            if size > MOST_BYTES:
                raise SystemExit(f"{file} has {size} bytes; {MOST_BYTES} are the most")
            print(f"{file}: {size / 1000:.0f} kB")
        await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the README's pictures from a running demo.")
    parser.add_argument("--data", type=Path, default=Path("var"), help="the demo's data directory")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    file = options.data / "demo.json"
    if not file.is_file():
        parser.error(f"there is no {file}: start `make demo` first, or say --data")
    demo = json.loads(file.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(traffic(demo))
    asyncio.run(take(demo, options.out))


if __name__ == "__main__":
    main()
