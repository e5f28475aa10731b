"""Every page of the console in a real browser, at a desk and on a phone: no error, nothing a policy refused, nothing
that axe finds serious, nothing wider than the screen.
"""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Page, ViewportSize

from console.pages import At, pages
from tests.console.conftest import shoot
from tests.console.people import operator, sign_in
from tests.console.samples import DOWNLOADS
from tests.console.test_every_page import filled
from tests.gateway.house import Actor, House, Process

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCREENS: dict[str, ViewportSize] = {"desk": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
AXE = """async rules => {
    const asked = rules === null ? {} : {runOnly: rules};
    const {violations} = await axe.run({resultTypes: ["violations"], ...asked});
    return violations.filter(({impact}) => impact === "serious" || impact === "critical")
        .map(({id, nodes}) => `${id}: ${nodes.map(({html}) => html.slice(0, 120))}`);
}"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""What axe finds otherwise does not depend on the scheme: it is looked for once at each width."""


@pytest.mark.parametrize("name", sorted(pages().keys() - DOWNLOADS))
async def test_a_page_is_in_order(name: str, page: Page, gateway: Process, house: House, acme: Actor) -> None:
    found = pages()[name]
    await sign_in(page.context, gateway.url, operator())
    path = await sync_to_async(filled)(found, house, acme)
    places = {"platform": f"/console/{path}"} if At.PLATFORM in found.at else {}
    places |= {"tenant": f"/console/t/acme/{path}"} if At.TENANT in found.at else {}
    faults = []
    for place, address in places.items():
        answer = await page.goto(gateway.url + address)
        assert answer is not None
        assert answer.status == 200
        for width, screen in SCREENS.items():
            for scheme in ("light", "dark"):
                await page.set_viewport_size(screen)
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                at = f"{place}-{width}-{scheme}"
                await shoot(page, f"{name}-{at}")
                if await page.evaluate(WIDER) > 0:
                    faults.append(f"{at}: wider than the screen")
                rules = None if (width, scheme) in {("desk", "light"), ("phone", "dark")} else OF_COLOURS
                faults += [f"{at}: {fault}" for fault in await serious(page, rules)]
    assert faults == []


async def serious(page: Page, rules: list[str] | None = None) -> list[str]:
    """What axe finds serious or critical: the rule, and where. :param rules: only these."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    found: list[str] = await page.evaluate(AXE, rules)
    return found
