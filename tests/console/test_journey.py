"""The console's main path, in a real browser, before a real gateway and a real worker: from signing in as an operator
to a stream that ends because its key was revoked. Celery's tasks are run here, since no Celery is.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connection
from playwright.async_api import Locator, Page, expect

from fleet import trial
from tenants import intake, pricing, provisioning
from tenants.actors import Actor as Doer
from tenants.models import AdapterVersion, ApiKey, BaseModel, LedgerEntry, Tenant
from tests.conftest import WorkerProcess
from tests.console.conftest import shoot
from tests.end_to_end.conftest import EXAMPLES
from tests.gateway.house import House, Process, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PASSWORD = "a quiet green lamp"
DOER = Doer("command", "tests")


@pytest.fixture
def platform(transactional_db: None, worker: WorkerProcess) -> House:
    """A model with a price, a worker that serves it, an operator, and another account than the one to come."""
    house = House(worker.model_dir)
    house.base.context_length = 4096
    house.base.save()
    house.worker(worker.url, "real")
    pricing.set_price(DOER, house.base, input=150_000, cached_input=75_000, output=600_000)
    get_user_model().objects.create_user("root", "root@example.org", PASSWORD, is_staff=True)
    provisioning.create(DOER, "globex", display_name="Globex")
    return house


def taken_in() -> None:
    """What Celery would do with the version that has just come. In a thread of its own, with its own connection."""
    try:
        version = AdapterVersion.objects.unscoped().get()
        intake.check(version.pk)
        trial.run(version.pk)
        version.refresh_from_db()
        assert version.state == "ready", version.report
    finally:
        connection.close()


async def test_the_main_path(page: Page, gateway: Process, platform: House) -> None:
    page.set_default_timeout(20_000)
    await sign_in(page, gateway)
    await create_account(page)
    key = await issue_key(page)
    await upload_adapter(page)
    await allow_it(page)
    await chat(page, key)
    await look_at_request_bill_and_audit(page)
    successor = await rotate(page)
    assert successor != key
    await revoke_amid_a_stream(page, successor, platform.base)


async def go(page: Page, name: str) -> None:
    await page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()


async def sign_in(page: Page, gateway: Process) -> None:
    await page.goto(f"{gateway.url}/console/")
    await page.get_by_label("E-mail address or user name").fill("root")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


async def create_account(page: Page) -> None:
    await go(page, "Tenants")
    await page.get_by_role("button", name="New account").click()
    await page.get_by_label("Short name").fill("acme")
    await page.get_by_label(re.compile("^Name")).fill("Acme Ltd")
    await page.get_by_role("button", name="Create it").click()
    await expect(page.get_by_role("status")).to_contain_text("Acme Ltd is there")
    await expect(page).to_have_url(re.compile(r"/console/t/acme/"))


async def issue_key(page: Page) -> str:
    """The key, which is shown once."""
    await go(page, "Keys")
    await page.get_by_role("button", name="Issue a key").first.click()
    await page.get_by_label(re.compile("^Name")).fill("journey")
    await page.get_by_role("button", name="Issue the key").click()
    text = await page.get_by_label("journey").input_value()
    assert text.startswith("lpx_live_")
    await page.get_by_role("link", name="I have copied it").click()
    assert text not in await page.content()
    return text


async def upload_adapter(page: Page) -> None:
    await go(page, "Adapters")
    await page.get_by_role("button", name="Upload an adapter").click()
    await page.get_by_label(re.compile("^Name")).fill("pirate")
    files: list[str | Path] = [
        EXAMPLES / "pirate" / name for name in ("adapter_config.json", "adapter_model.safetensors")
    ]
    await page.get_by_label("Files", exact=True).set_input_files(files)
    await page.get_by_role("button", name="Upload").click()
    await expect(page).to_have_url(re.compile("/adapters/pirate/versions/1$"))
    await sync_to_async(taken_in)()
    await go(page, "Adapters")
    await page.get_by_role("link", name="pirate", exact=True).click()
    await expect(page.get_by_text("answers all requests")).to_be_visible()
    await shoot(page, "journey-adapter")


async def allow_it(page: Page) -> None:
    """To another account, which then finds it."""
    await page.goto(page.url.split("/console/")[0] + "/console/tenants/globex/adapters")
    await page.get_by_label("Adapter").fill("acme/pirate")
    await page.get_by_role("button", name="Allow it").click()
    await expect(page.get_by_role("status")).to_contain_text("globex may use acme/pirate")
    await expect(page.get_by_role("cell", name="acme/pirate")).to_be_visible()


async def ask(page: Page, text: str) -> Locator:
    """The answer that begins."""
    await page.get_by_label("Message").fill(text)
    await page.get_by_label("Message").press("Enter")
    answer = page.locator(".answer").last
    await expect(answer.locator(".text")).not_to_be_empty(timeout=30_000)
    return answer


async def open_playground(page: Page, key: str, most: int) -> None:
    await page.goto(page.url.split("/console/")[0] + "/console/t/acme/playground")
    await page.get_by_text("Use a key of your own").click()
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Use it").click()
    await expect(page.get_by_text("Requests run with the key that you typed in.")).to_be_visible()
    await page.locator("summary", has_text="Settings").click()
    await page.get_by_label("Max tokens").fill(str(most))


async def chat(page: Page, key: str) -> None:
    await open_playground(page, key, 60)
    await page.get_by_label("Model", exact=True).select_option("acme/pirate")
    # The page itself takes notes: an answer of few tokens is whole before anybody looks a second time.
    await page.evaluate(
        """() => {
            window.seen = new Set();
            new MutationObserver(() => {
                const texts = document.querySelectorAll(".answer .text");
                if (texts.length) window.seen.add(texts[texts.length - 1].textContent.length);
            }).observe(document.body, {subtree: true, childList: true, characterData: true});
        }"""
    )
    answer = await ask(page, "How are you today?")
    figures = answer.locator(".figures")
    await expect(figures).to_contain_text("written", timeout=10_000)
    assert await page.evaluate("window.seen.size") > 3, "the tokens come one after the other"
    await expect(figures).to_contain_text(re.compile(r"first token .* tokens/s .* \d+ written"))
    await shoot(page, "journey-chat")


async def look_at_request_bill_and_audit(page: Page) -> None:
    tenant = Tenant.objects.get(slug="acme")
    entry = wait_for(lambda: LedgerEntry.objects.filter(tenant=tenant).first())
    assert entry.cost > 0
    await go(page, "Requests")
    row = page.get_by_role("row").filter(has_text="acme/pirate")
    await expect(row).to_contain_text("completed")
    await row.get_by_role("link").click()
    await expect(page.get_by_role("img", name=re.compile("Prefill|Decode|decode|Answer"))).to_be_visible()
    billed = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="Answer"))
    await expect(billed).to_contain_text(f"{entry.completion_tokens} tokens")
    await shoot(page, "journey-request")
    await go(page, "Usage and billing")
    await expect(page.get_by_role("heading", name="Usage and billing", level=1)).to_be_visible()
    await go(page, "Audit")
    for action in ("tenant.created", "key.issued", "adapter.shared"):
        await expect(page.get_by_role("cell", name=re.compile(re.escape(action))).first).to_be_visible()
    assert "lpx_live_" not in re.sub(r"lpx_live_\w{12}_?…?", "", await page.content())


async def rotate(page: Page) -> str:
    """The successor; the key itself goes on for a day."""
    await go(page, "Keys")
    await page.get_by_role("link", name="journey").click()
    await page.get_by_role("button", name="Rotate", exact=True).click()
    await page.get_by_role("button", name="Rotate it").click()
    text = await page.get_by_label("journey").input_value()
    keys = ApiKey.objects.filter(tenant__slug="acme", name="journey")
    assert sorted(key.state for key in keys) == ["active", "active"]
    return text


async def revoke_amid_a_stream(page: Page, key: str, base: BaseModel) -> None:
    await open_playground(page, key, 2000)
    await page.get_by_label("Model", exact=True).select_option(base.name)
    answer = await ask(page, "Tell me a very long story about a lighthouse keeper.")
    beside = await page.context.new_page()
    public_id = key.removeprefix("lpx_live_")[:12]
    await beside.goto(page.url.split("/console/")[0] + f"/console/t/acme/keys/{public_id}")
    await beside.get_by_role("button", name="Revoke").click()
    question = beside.get_by_role("dialog")
    await expect(question).to_contain_text("1 request that runs with it ends within 5 seconds")
    await question.get_by_role("button", name="Revoke it").click()
    await expect(beside.get_by_role("status")).to_contain_text("The key journey is revoked.")
    await expect(page.get_by_role("alert")).to_contain_text("The API key was revoked or has expired.", timeout=10_000)
    assert await answer.locator(".text").inner_text()
    await shoot(page, "journey-revoked")
    tenant = Tenant.objects.get(slug="acme")
    entries = wait_for(
        lambda: [each for each in LedgerEntry.objects.filter(tenant=tenant) if each.outcome != "completed"]
    )
    assert 0 < entries[0].completion_tokens < 2000
