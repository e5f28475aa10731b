"""Questions in dialogs, when what they ask about is gone, the server fails, or nothing is reached."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from playwright.async_api import Browser, Page, expect

from tenants import adapters
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import AdapterVersion
from tests.console.conftest import shoot
from tests.console.people import member, sign_in
from tests.gateway.house import Actor, House, Process

PROBLEM = """<!doctype html><html><body><main><div class="trouble"><h1>The server is in trouble</h1>
<p role="alert">The database is away.</p></div></main></body></html>"""

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest_asyncio.fixture(loop_scope="session")
async def asked(chromium: Browser, gateway: Process, bare_house: House, acme: Actor) -> AsyncIterator[Page]:
    """The page of an adapter with the versions 1 to 3. Chromium itself logs answers of 4xx, so nothing watches it."""
    bare_house.adapter(acme, "pirate")
    adapter = AdapterVersion.objects.get(adapter__tenant=acme.tenant).adapter
    for number in (2, 3):
        AdapterVersion.objects.create(adapter=adapter, number=number, state="ready", digest=f"{number:064x}")
    page = await (await chromium.new_context(viewport={"width": 1280, "height": 800})).new_page()
    await sign_in(page.context, gateway.url, member(acme.tenant, Role.DEVELOPER))
    await page.goto(f"{gateway.url}/console/t/acme/adapters/pirate")
    yield page
    await page.context.close()


async def fail(page: Page, body: str) -> None:
    """What lies between the browser and the server may answer too: with a page of its own."""
    await page.unroute_all()
    await page.route(
        "**/versions/3/delete", lambda route: route.fulfill(status=502, content_type="text/html", body=body)
    )


def left() -> list[int]:
    rows = AdapterVersion.objects.unscoped().filter(deleted_at=None).order_by("number")
    return list(rows.values_list("number", flat=True))


async def test_it_never_asks_about_what_was_asked_before(asked: Page, acme: Actor) -> None:
    dialog = asked.get_by_role("dialog")
    await asked.get_by_role("link", name="Delete v2").click()
    await expect(dialog.get_by_role("heading")).to_have_text("Delete acme/pirate v2?")
    await expect(dialog.get_by_role("button", name="Leave it")).to_be_focused()
    await shoot(asked, "dialog-question")
    await asked.keyboard.press("Enter")
    await expect(dialog).to_be_hidden()
    await expect(asked.get_by_role("link", name="Delete v2")).to_be_focused()

    await sync_to_async(adapters.delete_version)(Doer("command", "tests"), acme.tenant, "pirate", 3)
    await asked.get_by_role("link", name="Delete v3").click()
    await expect(dialog).to_contain_text("There is no version")
    await expect(dialog).to_contain_text("It may have been deleted")
    await expect(dialog.get_by_role("button")).to_have_text(["Close"])
    await expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    await shoot(asked, "dialog-gone")
    await asked.keyboard.press("Enter")
    await expect(dialog).to_be_hidden()
    assert await sync_to_async(left)() == [1, 2]


async def test_it_says_that_the_server_failed_or_was_not_reached(asked: Page) -> None:
    dialog, link = asked.get_by_role("dialog"), asked.get_by_role("link", name="Delete v2")
    await link.click()
    await dialog.get_by_role("button", name="Leave it").click()
    await asked.context.set_offline(True)
    await asked.get_by_role("link", name="Delete v3").click()
    await expect(dialog).to_contain_text("The server was not reached")
    await expect(dialog.get_by_role("button")).to_have_text(["Close"])
    await shoot(asked, "dialog-unreachable")
    await dialog.get_by_role("button", name="Close").click()
    await asked.context.set_offline(False)

    for body, words in ((PROBLEM, "The database is away"), ("<h1>Bad gateway</h1>", "The server could not answer")):
        await fail(asked, body)
        await asked.get_by_role("link", name="Delete v3").click()
        await expect(dialog).to_contain_text(words)
        await expect(dialog.get_by_role("button")).to_have_text(["Close"])
        await dialog.get_by_role("button", name="Close").click()
    await asked.unroute_all()

    await asked.get_by_role("link", name="Delete v3").click()
    await dialog.get_by_role("button", name="Delete it").click()
    await expect(asked.get_by_role("link", name="Delete v3")).to_have_count(0)
    assert await sync_to_async(left)() == [1, 2]
