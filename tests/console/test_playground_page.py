"""The playground: what the page knows, and its main task in a real browser before a real worker."""

from __future__ import annotations

import json
import os
import re
import sys
from asyncio import create_subprocess_exec
from asyncio import wait_for as wait_for_it
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from playwright.async_api import Browser, Page, expect

import console
from gateway.embedded.process import spawn, stop
from tenants import key_ring, playground, provisioning
from tenants.actors import Actor as Doer
from tenants.callers import Caller, Role
from tenants.models import ApiKey, AuditEntry, Member
from tests.conftest import GrantKeys, _ready_url
from tests.console.conftest import shoot
from tests.console.people import client_of, member, operator, sign_in
from tests.console.test_pages_in_a_browser import serious
from tests.gateway.house import Actor, House, Process, wait_for

DOER = Doer("command", "tests")
PAGE = "/console/t/acme/playground"


@pytest.fixture
def rows(db: None, tiny_model_dir: Path) -> House:
    """A house without a worker, for Django's client."""
    return House(tiny_model_dir)


def test_it_lists_what_the_key_may_use_and_says_which_key(rows: House) -> None:
    acme, other = rows.actor("acme"), rows.actor("other")
    rows.adapter(acme, "pirate")
    rows.adapter(other, "secret")
    user = member(acme.tenant, Role.DEVELOPER)
    answer = client_of(user).get(PAGE)
    text = answer.content.decode()
    assert answer.context["names"] == ["tiny", "acme/pirate"]
    assert "other/secret" not in text
    assert "The first question makes a key called <code>playground</code> of yours" in text
    assert 'data-tickets="/api/playground-tickets"' in text
    assert not ApiKey.objects.filter(tenant=acme.tenant, name="playground").exists(), "looking makes no key"
    caller = Caller(
        "tests", acme.tenant, Role.DEVELOPER, DOER, Member.objects.get(tenant=acme.tenant, user=user), user=user
    )
    key = playground.ready(caller)
    assert f"your key <code>playground</code> ({key.public_id})" in client_of(user).get(PAGE).content.decode()
    key_ring.revoke(caller, key)
    assert f"({key.public_id}) is revoked" in client_of(user).get(PAGE).content.decode()


def test_an_operator_asks_for_the_account(rows: House) -> None:
    rows.actor("acme")
    text = client_of(operator()).get(PAGE).content.decode()
    assert 'data-tickets="/api/operator/tenants/acme/playground-tickets"' in text
    assert "called <code>playground</code> of yours" in text
    assert "billed to the account" in text


def test_long_lists_of_models_are_searched(rows: House) -> None:
    acme = rows.actor("acme")
    for number in range(playground.MOST_MODELS + 20):
        rows.adapter(acme, f"a{number:03}")
    client = client_of(member(acme.tenant))
    first = client.get(PAGE)
    assert (len(first.context["names"]), first.context["more"]) == (playground.MOST_MODELS, True)
    assert "data-more" in first.content.decode()
    assert client.get(PAGE, {"q": "A11"}).context["names"] == [f"acme/a{number}" for number in range(110, 120)]
    for query in ("nothing\0such", "%", "x" * 5000, "'"):
        assert client.get(PAGE, {"q": query}).context["names"] == []
    chosen = client.get(PAGE, {"model": "acme/a119"})
    assert "<option selected>acme/a119</option>" in chosen.content.decode()
    for wrong in ("nobody/s", "a\0b", "<b>", "x" * 5000):
        answer = client.get(PAGE, {"model": wrong})
        assert answer.status_code == 200
        assert "<option selected>" not in answer.content.decode()


def test_the_page_costs_the_same_however_many_models_there_are(rows: House) -> None:
    acme = rows.actor("acme")
    client = client_of(member(acme.tenant))
    counts = []
    for number in range(31):
        rows.adapter(acme, f"a{number}")
        if number in {0, 2, 30}:
            with CaptureQueriesContext(connection) as asked:
                client.get(PAGE)
            counts.append(len(asked))
    assert counts[1] == counts[2]


@pytest.fixture(scope="module")
def tiny_worker(tiny_model_dir: Path, grant_keys: GrantKeys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real worker on the tiny random model; the address."""
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    command = [sys.executable, "-m", "inference", "--model", tiny_model_dir, "--host", "127.0.0.1", "--port", "0"]
    command += ["--grant-key", grant_keys.public, "--adapter-store", tmp_path_factory.mktemp("adapters")]
    process = spawn([str(part) for part in command], log)
    try:
        yield _ready_url(process, log)
    finally:
        stop(process)


async def open_as(page: Page, gateway: Process, user: Any) -> None:
    await sign_in(page.context, gateway.url, user)
    await page.goto(gateway.url + PAGE)
    await expect(page.get_by_label("Model", exact=True)).not_to_be_empty()


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_label("Message").press("Enter")


@pytest.mark.browser
@pytest.mark.slow
async def test_a_developer_tries_a_model(
    page: Page, gateway: Process, bare_house: House, acme: Actor, tiny_worker: str
) -> None:
    bare_house.worker(tiny_worker, "tiny")
    await open_as(page, gateway, member(acme.tenant, Role.DEVELOPER, "ada"))
    await page.get_by_text("Settings").click()
    await page.get_by_label("System prompt").fill("Answer 'briefly'.")
    await page.get_by_label("Temperature", exact=True).fill("0.7")
    await page.get_by_label("Seed").fill("7")
    await page.get_by_label("Max tokens").fill("12")
    await page.get_by_label("Show how likely each token was").check()
    await shoot(page, "playground-settings")
    await ask(page, "What's new?")
    figures = page.locator(".answer .figures")
    await expect(figures).to_contain_text(
        re.compile(r"first token \d+ ms · [\d.]+ tokens/s · \d+ tokens read · 12 writ")
    )
    tokens = page.locator(".answer .token")
    assert await tokens.count() > 2
    await tokens.nth(1).hover()
    detail = page.locator(".token-detail")
    await expect(detail).to_contain_text(re.compile(r"\d+\.\d %"))
    assert await detail.locator("tr").count() >= 5
    await shoot(page, "playground-tokens")
    await tokens.first.focus()
    await page.keyboard.press("ArrowRight")
    assert await tokens.nth(1).evaluate("token => token === document.activeElement")
    assert await serious(page) == []
    key = ApiKey.objects.get(tenant=acme.tenant, name="playground")
    row = bare_house.one_row(acme)
    assert (row.key_id, row.outcome, row.completion_tokens) == (key.pk, "completed", 12)
    assert AuditEntry.objects.get(tenant=acme.tenant, action="key.issued").actor_name == "ada"
    await expect(page.get_by_text(f"Requests run with the key playground ({key.public_id})")).to_be_visible()
    await the_code_runs(page, acme, gateway)


async def the_code_runs(page: Page, acme: Actor, gateway: Process) -> None:
    """What the page shows as code asks the same, with a key from the environment and none in the text."""
    await page.get_by_role("button", name="As code").click()
    curl = await page.locator("#code-curl").input_value()
    python = await page.locator("#code-python").input_value()
    await shoot(page, "playground-code")
    assert "lpx_" not in curl + python
    environment = {**os.environ, "LORAPLEX_API_KEY": acme.secret}
    for command in (("sh", "-c", curl), (sys.executable, "-c", python)):
        process = await create_subprocess_exec(*command, env=environment, stdout=PIPE, stderr=PIPE)
        output, problems = await wait_for_it(process.communicate(), 60)
        assert process.returncode == 0, problems
        assert output.strip()
        if command[0] == "sh":
            last = [line for line in output.decode().splitlines() if line.startswith("data: {")][-1]
            assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] == 12
    await page.get_by_role("button", name="Close").click()


@pytest.mark.browser
async def test_two_models_side_by_side_and_stop(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    house.adapter(acme, "pirate")
    await open_as(page, gateway, operator())
    await page.get_by_role("button", name="Compare two").click()
    await expect(page.get_by_label("Beside it")).to_have_value("acme/pirate")
    await page.get_by_label("Model", exact=True).select_option("acme/pirate")
    await expect(page.get_by_label("Beside it")).to_have_value("tiny")
    await page.get_by_label("Model", exact=True).select_option("tiny")
    await expect(page.get_by_label("Beside it")).to_have_value("acme/pirate")
    await ask(page, "hello")
    answers = page.locator(".answer")
    await expect(answers.nth(0).locator(".text")).to_contain_text("0 1 2")
    await expect(answers.nth(1).locator(".text")).to_contain_text("0 1 2")
    await page.get_by_role("button", name="Stop").click()
    received = re.compile(r"first token \d+ ms · \d+ tokens received · stopped")
    await expect(answers.nth(0).locator(".figures")).to_have_text(received)
    await expect(answers.nth(1).locator(".figures")).to_have_text(received)
    await page.get_by_role("button", name="As code").click()
    for form in ("curl", "python"):
        code = await page.locator(f"#code-{form}").input_value()
        assert [line for line in code.splitlines() if line.startswith("#")] == ["# tiny", "# acme/pirate"]
        assert code.count("/v1") == (2 if form == "curl" else 1)
    compile(code, "code-python", "exec")
    await page.get_by_role("button", name="Close").click()
    assert await answers.locator(".voice").all_inner_texts() == ["tiny", "acme/pirate"]
    await shoot(page, "playground-beside")
    await page.emulate_media(color_scheme="dark")
    await page.set_viewport_size({"width": 390, "height": 844})
    await shoot(page, "playground-beside-phone")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    wait_for(lambda: len(house.ledger(acme)) == 2)
    key = ApiKey.objects.get(tenant=acme.tenant, playground_of__isnull=False)
    assert ({row.key_id for row in house.ledger(acme)}, key.member) == ({key.pk}, None)


@pytest.mark.browser
async def test_what_ends_a_stream_is_told_and_a_new_key_is_offered(
    chromium: Browser, gateway: Process, house: House, acme: Actor
) -> None:
    """Chromium itself logs the 409, so this page is not under the fixture's watch."""
    page = await (await chromium.new_context()).new_page()
    user = member(acme.tenant, Role.DEVELOPER)
    await open_as(page, gateway, user)
    await page.get_by_text("Settings").click()
    await page.get_by_label("Max tokens").fill("400")
    await ask(page, "hello")
    await expect(page.locator(".answer .text")).to_contain_text("0 1 2")
    key = ApiKey.objects.get(tenant=acme.tenant, name="playground")
    caller = Caller("tests", acme.tenant, Role.OWNER, DOER)
    key_ring.revoke(caller, key)
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("The API key was revoked or has expired.")
    await ask(page, "still there?")
    await expect(alert.last).to_contain_text(f"Your key playground ({key.public_id}) is revoked.")
    await shoot(page, "playground-revoked")
    await page.get_by_role("button", name="Use a new key and ask again").click()
    await expect(page.locator(".answer .text").last).to_contain_text("0 1 2")
    assert ApiKey.objects.filter(tenant=acme.tenant, name="playground").count() == 2
    provisioning.suspend(DOER, acme.tenant, "unpaid")
    await expect(alert.last).to_contain_text("suspended")
    await expect(alert.last).to_contain_text("An operator of the platform can lift this.")
    await shoot(page, "playground-suspended")
    await page.context.close()


@pytest.mark.browser
async def test_signing_out_in_another_tab_ends_what_is_open(
    chromium: Browser, gateway: Process, house: House, acme: Actor
) -> None:
    """Chromium itself logs the 401, so this page is not under the fixture's watch."""
    page = await (await chromium.new_context()).new_page()
    await open_as(page, gateway, member(acme.tenant, Role.DEVELOPER))
    await page.get_by_text("Settings").click()
    await page.get_by_label("Max tokens").fill("400")
    await ask(page, "hello")
    await expect(page.locator(".answer .text")).to_contain_text("0 1 2")
    other = await page.context.new_page()
    await other.goto(gateway.url + "/console/t/acme/overview")
    await other.get_by_role("button", name="Sign out").click()
    await other.wait_for_url("**/sign-in*")
    alert = page.get_by_role("alert")
    await expect(alert.last).to_contain_text("You were signed out")
    await ask(page, "still there?")
    await expect(alert.last).to_contain_text("You are no longer signed in.")
    await shoot(page, "playground-signed-out")
    assert house.one_row(acme).completion_tokens < 390
    await page.context.close()


@pytest.mark.browser
async def test_with_a_key_of_ones_own(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    await open_as(page, gateway, member(acme.tenant, Role.DEVELOPER))
    await page.get_by_text("Use a key of your own").click()
    await page.get_by_label("API key").fill(acme.secret)
    await page.get_by_role("button", name="Use it").click()
    await expect(page.get_by_text("Requests run with the key that you typed in.")).to_be_visible()
    await page.get_by_text("Settings").click()
    await page.get_by_label("Max tokens").fill("4")
    await ask(page, "hello")
    await expect(page.locator(".answer .figures")).to_contain_text("4 written")
    assert house.one_row(acme).key_id == acme.key.pk
    assert not ApiKey.objects.filter(tenant=acme.tenant, name="playground").exists()
    await page.get_by_role("button", name="Go back to the account's").click()
    await ask(page, "hello")
    await expect(page.locator(".answer .figures")).to_contain_text("4 written")
    assert ApiKey.objects.filter(tenant=acme.tenant, name="playground").exists()


@pytest.mark.browser
async def test_without_any_model_it_says_what_to_do(page: Page, gateway: Process, bare_house: House) -> None:
    bare = bare_house.actor("acme")
    bare.tenant.model_allowances.all().delete()
    await sign_in(page.context, gateway.url, member(bare.tenant))
    await page.goto(gateway.url + PAGE)
    await expect(page.get_by_text("No model may be used yet.")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_disabled()
    await page.get_by_role("button", name="Why is the sky blue?").click()
    await expect(page.locator(".turn")).to_have_count(0)


@pytest.mark.browser
async def test_many_models_are_found_by_part_of_their_name(
    page: Page, gateway: Process, house: House, acme: Actor
) -> None:
    for number in range(playground.MOST_MODELS + 5):
        house.adapter(acme, f"a{number:03}")
    await open_as(page, gateway, member(acme.tenant, Role.DEVELOPER))
    await page.get_by_label("Find a model").fill("104")
    await expect(page.get_by_text("1 found")).to_be_visible()
    model = page.get_by_label("Model", exact=True)
    assert await model.locator("option").all_inner_texts() == ["acme/a104", "tiny"], "what was chosen stays"
    await model.select_option("acme/a104")
    await page.get_by_label("Find a model").fill("nothing such")
    await expect(page.get_by_text("Nothing was found")).to_be_visible()
    await expect(model).to_have_value("acme/a104")


async def answer_searches(page: Page, status: int) -> None:
    """With a page that is not the playground, as what lies before the server may."""
    await page.route(
        "**/playground?q=*", lambda route: route.fulfill(status=status, content_type="text/html", body="<h1>Away</h1>")
    )


@pytest.mark.browser
async def test_a_search_that_fails_says_why(chromium: Browser, gateway: Process, house: House, acme: Actor) -> None:
    """Chromium itself logs the 502, so this page is not under the fixture's watch."""
    for number in range(playground.MOST_MODELS + 5):
        house.adapter(acme, f"a{number:03}")
    page = await (await chromium.new_context()).new_page()
    await open_as(page, gateway, member(acme.tenant, Role.DEVELOPER))
    search, note = page.get_by_label("Find a model"), page.locator("#find-note")
    for status, words in ((502, "The server could not answer (status 502)."), (200, "(status 200).")):
        await answer_searches(page, status)
        await search.fill(f"a{status}")
        await expect(note).to_contain_text(words)
        await page.unroute_all()
    await page.context.clear_cookies()
    await search.fill("a104")
    await expect(note).to_have_text("You are no longer signed in.")
    await page.context.close()


def test_the_script_knows_the_sign_in_page(settings: Any) -> None:
    script = (Path(console.__file__).parent / "static/console/access.js").read_text()
    assert f'const SIGN_IN = "{settings.LOGIN_URL}";' in script
