"""Small screens, no script, the keyboard and the way back: what every page of the console owes whoever looks."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from playwright.async_api import Browser, Page, expect

from tenants import audit
from tenants.actors import Actor as Doer
from tenants.models import AdapterVersion, Batch
from tests.console.conftest import shoot
from tests.console.people import member, operator, sign_in
from tests.console.request_rows import ended_request
from tests.console.samples import finished_batch
from tests.gateway.house import Actor, House, Process

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE: Any = {"width": 390, "height": 844}
LONG = "a-name-of-very-many-letters-that-somebody-wrote-without-a-single-space-in-it-at-all"
DRAWN = """async (data) => {
  const { charts } = await import(document.querySelector("script[src*='charts']").src);
  const plot = document.createElement("div");
  plot.dataset.chart = JSON.stringify(data);
  const texts = [], write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (...given) {
    texts.push(given[0]);
    return write.apply(this, given);
  };
  document.querySelector("main").append(plot);
  charts();
  await new Promise((resolve) => { setTimeout(resolve, 300); });
  CanvasRenderingContext2D.prototype.fillText = write;
  const canvas = plot.querySelector("canvas");
  const { data: pixels } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const wanted = getComputedStyle(document.documentElement).getPropertyValue("--chart-1").trim();
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
  let coloured = 0;
  for (let at = 0; at < pixels.length; at += 4) {
    coloured += pixels[at] === red && pixels[at + 1] === green && pixels[at + 2] === blue;
  }
  return { texts, coloured };
}"""


async def test_the_menu_opens_where_one_is(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    for number in range(40):
        audit.record(Doer("member", "ada"), "key.issued", f"k{number}", tenant=acme.tenant)
    await sign_in(page.context, gateway.url, member(acme.tenant, name="ada"))
    await page.set_viewport_size(PHONE)
    await page.goto(f"{gateway.url}/console/t/acme/audit")
    await page.evaluate("window.scrollTo(0, 1500)")
    menu, button = page.get_by_role("navigation", name="Pages"), page.get_by_role("button", name="Menu")
    await expect(menu).to_be_hidden()
    await button.click()
    await expect(menu.get_by_role("link", name="Overview")).to_be_in_viewport()
    await shoot(page, "phone-menu")
    await page.keyboard.press("Escape")
    await expect(menu).to_be_hidden()
    await expect(button).to_be_focused()
    await button.click()
    await menu.get_by_role("link", name="Signed in as ada").click()
    await page.wait_for_url("**/accounts/")


async def test_without_script_there_is_a_menu_and_nothing_is_promised(
    chromium: Browser, gateway: Process, house: House, acme: Actor
) -> None:
    batch = finished_batch(house, acme)
    batch.status = Batch.Status.IN_PROGRESS
    batch.save()
    context = await chromium.new_context(viewport=PHONE, java_script_enabled=False)
    await sign_in(context, gateway.url, member(acme.tenant))
    page = await context.new_page()
    await page.goto(f"{gateway.url}/console/t/acme/batches/{batch.pk}")
    await expect(page.get_by_role("button", name="Menu")).to_be_hidden()
    await expect(page.get_by_text("This page follows by itself")).to_be_hidden()
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name="Requests").click()
    await expect(page.get_by_role("heading", name="Requests")).to_be_visible()
    await shoot(page, "phone-no-script")
    await context.close()


async def test_what_looks_like_a_button_is_pressed_with_space(
    page: Page, gateway: Process, house: House, acme: Actor
) -> None:
    await sign_in(page.context, gateway.url, member(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/keys")
    await page.get_by_role("button", name="Issue a key").focus()
    await page.keyboard.press("Space")
    await page.wait_for_url("**/keys/new")


async def test_one_step_back_leaves_a_search(page: Page, gateway: Process, house: House, stranger: Actor) -> None:
    await sign_in(page.context, gateway.url, operator())
    for path, field, nothing in (
        ("tenants", "Short name or name", "No account is like this"),
        ("audit", "Subject, action or person", "Nothing was found"),
    ):
        await page.goto(f"{gateway.url}/console/overview")
        await page.goto(f"{gateway.url}/console/{path}")
        search = page.get_by_label(field)
        await search.fill("nothing such")
        await expect(page.locator(".nothing")).to_contain_text(nothing)
        length = await page.evaluate("history.length")
        async with page.expect_response(lambda answer: "nothing" in answer.url):
            await search.press("Enter")
        await page.get_by_role("heading", level=1).click()
        await page.wait_for_timeout(500)
        assert await page.evaluate("history.length") == length, path
        await page.go_back()
        await expect(page).to_have_url(f"{gateway.url}/console/{path}")


async def test_lists_keep_their_columns_in_sight(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    """Long names take no more than their place; what was spent is seen without scrolling."""
    acme.key.name = LONG
    acme.key.save()
    batch = finished_batch(house, acme)
    await sync_to_async(_one_request)(house, acme)
    await sign_in(page.context, gateway.url, operator())
    for path in ("requests", "keys", "batches"):
        await page.goto(f"{gateway.url}/console/{path}")
        table = page.get_by_role("region").first
        assert await table.evaluate("each => each.scrollWidth - each.clientWidth") <= 0, path
        heights = await table.locator("tbody tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
        assert max(heights) < 90, path
        await shoot(page, f"narrow-{path}")
    await expect(page.get_by_role("link", name=str(batch.pk))).to_be_visible()


def _one_request(house: House, actor: Actor) -> None:
    house.adapter(actor, LONG[:60])
    ended_request(house, actor, adapter_version=AdapterVersion.objects.get(adapter__tenant=actor.tenant))


async def test_on_a_phone_the_log_is_cards(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    for number in range(50):
        audit.record(Doer("member", "ada"), "key.issued", f"k{number}", tenant=acme.tenant, after={"name": LONG})
    await sign_in(page.context, gateway.url, member(acme.tenant))
    await page.set_viewport_size(PHONE)
    await page.goto(f"{gateway.url}/console/t/acme/audit")
    row = page.locator("tbody tr").first
    await expect(row.locator("[data-label=After]")).to_be_visible()
    await expect(row.locator("[data-label=Before]")).to_be_hidden()
    assert await row.evaluate("row => row.offsetHeight") < 210
    assert await page.get_by_role("region", name="Entries").evaluate("each => each.scrollWidth - each.clientWidth") <= 0
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await shoot(page, f"phone-audit-{scheme}")


async def test_actions_in_the_log_are_not_broken_inside_words(
    page: Page, gateway: Process, house: House, acme: Actor
) -> None:
    by = Doer("operator", "grace", "203.0.113.77")
    sides = {"before": "was", "after": "is"}
    changes = {side: {"state": word, "description": f"{word} {LONG} " * 3} for side, word in sides.items()}
    for action in ("worker.drained", "account.password_changed", "public_prefix.withdrawn"):
        audit.record(by, action, "local", tenant=acme.tenant, **changes)
    await sign_in(page.context, gateway.url, operator())
    for path in ("audit", "t/acme/audit"):
        for width in (1280, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.goto(f"{gateway.url}/console/{path}")
            wide = "each => each.scrollWidth - each.clientWidth"
            assert await page.get_by_role("region", name="Entries").evaluate(wide) <= 0, (path, width)
            lines = "all => all.map(one => one.getClientRects().length)"
            if width == 1280:
                assert set(await page.locator("td.words > strong").evaluate_all(lines)) == {1}, path
            await shoot(page, f"actions-{path.replace('/', '-')}-{width}")


async def test_a_lonely_value_is_drawn_and_axes_have_units(
    page: Page, gateway: Process, house: House, acme: Actor
) -> None:
    await sign_in(page.context, gateway.url, member(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/overview")
    hours = [1_700_000_000 + 3600 * number for number in range(6)]
    data = {"x": hours, "bucket": "hour", "kind": "lines", "currency": "USD"}

    async def drawn(unit: str, values: list[float | None]) -> dict[str, Any]:
        series = [{"label": "p50", "values": values}]
        found: dict[str, Any] = await page.evaluate(DRAWN, data | {"unit": unit, "series": series})
        return found

    assert (await drawn("seconds", [None] * 6))["coloured"] == 0
    assert (await drawn("seconds", [None, None, 0.2, None, None, None]))["coloured"] > 10
    counts = (await drawn("number", [0, 3, 9, 2, 0, 1]))["texts"]
    assert not [text for text in counts if "." in str(text)], counts
    assert "USD" in (await drawn("money", [0, 0.3, 0.9, 0.2, 0, 0.1]))["texts"]


async def test_the_chosen_theme_holds_on_the_sign_in_page(
    page: Page, gateway: Process, house: House, acme: Actor
) -> None:
    await sign_in(page.context, gateway.url, member(acme.tenant))
    await page.goto(f"{gateway.url}/console/t/acme/overview")
    await page.get_by_role("button", name="Light or dark").click()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
