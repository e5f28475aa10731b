"""Settings: what operators set for all accounts, and what an account's owners set."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.async_api import Page, expect

from fleet import public_prefixes
from fleet.models import PublicPrefix
from tenants import keys, operator_keys, pricing
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import AuditEntry, OperatorKey, Plan, Price, Tenant
from tests.console.conftest import shoot
from tests.console.opened import opened
from tests.console.people import client_of, member, operator, sign_in
from tests.gateway.house import House, Process

ANN = Doer("operator", "ann")
TEXT = "You are the assistant of Initech, and answer every question at once. " * 3


def text(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()
    return " ".join(answer.content.decode().split())


def test_the_first_page_counts_and_names_what_is_free(house: House) -> None:
    client = client_of(operator())
    page = text(client.get("/console/settings"))
    assert f"<code>{house.base.name}</code> has no price for everybody" in page
    pricing.set_price(ANN, house.base, input=1, output=1)
    assert "has no price for everybody" not in text(client.get("/console/settings"))
    assert client.post("/console/settings").status_code == 405


def test_a_price_is_set_in_the_currency(house: House) -> None:
    client = client_of(operator())
    assert "No price is set, so nothing is charged" in text(client.get("/console/settings/prices"))
    good = {"model": house.base.name, "input": "0.15", "cached_input": "", "output": "0.6", "valid_from": ""}
    assert client.post("/console/settings/prices/new", good)["Location"] == "/console/settings/prices"
    price = Price.objects.get()
    assert (price.input, price.cached_input, price.output, price.plan) == (150_000, 150_000, 600_000, None)
    later = timezone.now() + timedelta(days=2)
    own = {"plan": house.plan.name, "cached_input": "0.000001", "valid_from": later.strftime("%Y-%m-%dT%H:%M")}
    assert client.post("/console/settings/prices/new", good | own).status_code == 302
    planned = Price.objects.get(plan=house.plan)
    assert (planned.cached_input, planned.valid_from) == (1, later.replace(second=0, microsecond=0))
    page = text(client.get("/console/settings/prices"))
    assert "0.15 USD" in page
    assert ">in force<" in page
    assert ">to come<" in page
    assert "No price of a base model" in text(client.get("/console/settings/prices", {"q": "x\0y"}))
    entry = AuditEntry.objects.unscoped().filter(action="price.set").first()
    assert entry is not None
    assert entry.actor_name == "root"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": "-1"}, "greater than or equal to 0"),
        ({"input": "x"}, "Enter a number"),
        ({"input": ""}, "required"),
        ({"input": "0.0000001"}, "decimal places"),
        ({"input": "99999"}, "between 0 and 2147483647"),
        ({"cached_input": "1"}, "cannot be more than input"),
        ({"valid_from": "2001-01-01T00:00"}, "lies in the past"),
        ({"valid_from": "soon"}, "valid date/time"),
        ({"plan": "none"}, "valid choice"),
        ({"model": "a\0"}, "Null characters"),
        ({"model": "none"}, "valid choice"),
    ],
)
def test_a_wrong_price_is_refused_beside_its_field(house: House, change: dict[str, str], words: str) -> None:
    good = {"model": house.base.name, "input": "0.15", "cached_input": "", "output": "0.6", "valid_from": ""}
    answer = text(client_of(operator()).post("/console/settings/prices/new", good | change), 400)
    assert words in answer
    assert not Price.objects.exists()


def test_a_plan_is_made_changed_and_deleted(house: House) -> None:
    client, plans = client_of(operator()), "/console/settings/plans"
    body = {"name": "small", "requests_per_minute": "60", "budget_hard": "12.50", "max_adapter_bytes": "20 GB"}
    assert client.post(f"{plans}/new", body)["Location"] == plans
    plan = Plan.objects.get(name="small")
    assert (plan.requests_per_minute, plan.budget_hard, plan.max_adapter_bytes) == (60, 12_500_000, 20 * 10**9)
    assert plan.tokens_per_day is None
    assert "There is a plan &#x27;small&#x27; already" in text(client.post(f"{plans}/new", body), 400)
    assert "unlike" in text(client.post(f"{plans}/new", body | {"name": "a b"}), 400)
    assert "Requests per minute: 60" in text(client.get(plans, {"q": "sma"}))
    assert "12.50" in text(client.get(f"{plans}/small/change"))
    stale = opened(client, f"{plans}/small/change")
    wrong = client.post(f"{plans}/small/change", stale | {"budget_soft": "2", "budget_hard": "1"})
    assert "never reached" in text(wrong, 400)
    change = stale | {"tokens_per_day": "5", "requests_per_minute": ""}
    assert client.post(f"{plans}/small/change", change).status_code == 302
    assert client.post(f"{plans}/small/change", stale | {"max_concurrent": "2"}).status_code == 302
    plan.refresh_from_db()
    assert (plan.requests_per_minute, plan.tokens_per_day, plan.max_concurrent) == (None, 5, 2), "no stale form's"
    assert (plan.budget_hard, plan.max_adapter_bytes) == (12_500_000, 20 * 10**9)
    acme = house.actor("acme").tenant
    Tenant.objects.filter(pk=acme.pk).update(plan=plan)
    assert "the plan of 1 account." in text(client.get(f"{plans}/small/change"))
    assert "it cannot be deleted" in text(client.get(f"{plans}/small/delete"))
    assert "Plan small has 1 tenant" in text(client.post(f"{plans}/small/delete"), 409)
    Tenant.objects.filter(pk=acme.pk).update(plan=house.plan)
    assert client.post(f"{plans}/small/delete").status_code == 302
    assert not Plan.objects.filter(name="small").exists()
    assert text(client.get(f"{plans}/small/change"), 404)
    actions = set(AuditEntry.objects.unscoped().values_list("action", flat=True))
    assert {"plan.created", "plan.limits_changed", "plan.deleted"} <= actions


def test_a_prefix_is_declared_and_withdrawn(house: House) -> None:
    client, pages = client_of(operator()), "/console/settings/prefixes"
    assert "Nothing is public" in text(client.get(pages))
    body = {"name": "support", "model": house.base.name, "kind": "system", "text": TEXT + "\r\nBe brief."}
    assert client.post(f"{pages}/new", body)["Location"] == pages
    prefix = PublicPrefix.objects.get()
    assert prefix.source == {"messages": [{"role": "system", "content": TEXT + "\nBe brief."}]}
    assert "already" in text(client.post(f"{pages}/new", body), 400)
    assert f"{public_prefixes.shared_tokens(prefix)} tokens" in text(client.get(pages))
    assert "system: " not in text(client.get(pages)) + text(client.get(f"{pages}/support"))
    house.worker("http://127.0.0.1:9", "w1")
    assert "does not answer" in text(client.get(f"{pages}/support", {"now": "1"}))
    assert f"1 worker of {house.base.name} forget it" in text(client.get(f"{pages}/support/withdraw"))
    assert client.post(f"{pages}/support/withdraw").status_code == 302
    assert text(client.get(f"{pages}/support"), 404)
    raw = {"name": "raw", "model": house.base.name, "kind": "prompt", "text": "a b c d " * 10}
    house.adapter(house.actor("acme"), "pirate", "a" * 64)
    assert client.post(f"{pages}/new", raw | {"adapter": "acme/pirate"}).status_code == 302
    assert str(PublicPrefix.objects.get().adapter) == "acme/pirate"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a b"}, "Enter a valid"),
        ({"text": "short"}, "too few; blocks of 16"),
        ({"text": "  "}, "is empty"),
        ({"text": "x" * 200_001}, "200001 characters"),
        ({"kind": "poem"}, "valid choice"),
        ({"adapter": "acme/none"}, "There is no adapter"),
        ({"adapter": "none"}, "owner/name"),
        ({"model": "none"}, "valid choice"),
    ],
)
def test_a_wrong_prefix_is_refused_beside_its_field(house: House, change: dict[str, str], words: str) -> None:
    body = {"name": "support", "model": house.base.name, "kind": "prompt", "text": TEXT} | change
    assert words in text(client_of(operator()).post("/console/settings/prefixes/new", body), 400)
    assert not PublicPrefix.objects.exists()


def test_an_operators_key_is_shown_once(db: None) -> None:
    client, pages = client_of(operator()), "/console/settings/operator-keys"
    assert "No key was issued yet" in text(client.get(pages))
    made = client.post(f"{pages}/issue", {"name": "dashboard", "expires_at": ""})
    assert made["Cache-Control"].count("no-store") == 1
    secret = made.context["text"]
    key = OperatorKey.objects.get()
    assert keys.parse(secret, keys.OPERATOR_PREFIX).public_id == key.public_id
    assert secret in made.content.decode()
    again = text(client.post(f"{pages}/issue", {"name": "dashboard", "expires_at": ""}), 400)
    assert "There is or was an operator key" in again
    assert secret not in again + text(client.get(pages)) + str(list(AuditEntry.objects.unscoped().values()))
    assert "in the future" in text(client.post(f"{pages}/issue", {"name": "x", "expires_at": "2001-01-01T00:00"}), 400)
    assert "It was never used" in text(client.get(f"{pages}/{key.public_id}/revoke"))
    assert client.post(f"{pages}/{key.public_id}/revoke")["Location"] == pages
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert ">revoked<" in text(client.get(pages, {"q": "dash"}))
    assert text(client.get(f"{pages}/none/revoke"), 404)


def test_an_owner_names_the_account(house: House) -> None:
    acme = house.actor("acme").tenant
    owner = client_of(member(acme))
    assert "<code>acme</code>" in text(owner.get("/console/t/acme/settings"))
    assert owner.post("/console/t/acme/settings", {"display_name": "Acme & Sons"}).status_code == 302
    acme.refresh_from_db()
    assert acme.display_name == "Acme & Sons"
    for wrong, words in (("", "required"), ("x" * 201, "at most 200"), ("a\0b", "Null characters")):
        assert words in text(owner.post("/console/t/acme/settings", {"display_name": wrong}), 400)
    for role in (Role.VIEWER, Role.DEVELOPER):
        client = client_of(member(acme, role))
        assert client.post("/console/t/acme/settings", {"display_name": "Mine"}).status_code == 403
    entry = AuditEntry.objects.get(tenant=acme, action="tenant.changed")
    assert (entry.actor_kind, entry.before, entry.after) == (
        "member",
        {"display_name": "Acme"},
        {"display_name": "Acme & Sons"},
    )


def test_queries_do_not_grow(house: House) -> None:
    user = operator()
    pages = ["/console/settings", *(f"/console/settings/{name}" for name in ("prices", "plans", "prefixes"))]
    pages.append("/console/settings/operator-keys")
    found = []
    for first, last in ((0, 3), (3, 30)):
        for number in range(first, last):
            plan = Plan.objects.create(name=f"p{number}", requests_per_minute=6)
            pricing.set_price(ANN, house.base, input=1, output=1, plan=plan)
            operator_keys.issue(ANN, f"k{number}")
            public_prefixes.declare(ANN, f"x{number}", house.base, prompt=TEXT)
        counts = []
        for url in pages:
            client = client_of(user)
            with CaptureQueriesContext(connection) as counted:
                text(client.get(url))
            counts.append(len(counted))
        found.append(counts)
    assert found[0] == found[1]


@pytest.mark.browser
@pytest.mark.slow
async def test_a_price_is_set_and_a_plan_deleted(page: Page, gateway: Process, house: House) -> None:
    await sign_in(page.context, gateway.url, operator())
    await page.goto(f"{gateway.url}/console/settings")
    await page.get_by_role("link", name="Set one").click()
    await page.get_by_label("Prompt tokens, in USD per million", exact=True).fill("0.15")
    await page.get_by_label("Generated tokens, in USD per million").fill("0.6")
    await page.get_by_role("button", name="Set the price").click()
    await expect(page.get_by_text(f"The price of {house.base.name} is set.")).to_be_visible()
    await expect(page.get_by_text("in force", exact=True).first).to_be_visible()
    await shoot(page, "settings-price-set")
    await page.get_by_role("navigation", name="Settings").get_by_role("link", name="Plans").click()
    await page.get_by_role("link", name=f"Delete {house.plan.name}").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    await expect(page.get_by_text(f"The plan {house.plan.name} is deleted.")).to_be_visible()
