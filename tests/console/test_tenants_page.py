"""Operators' pages about tenants: the list, new ones, plans, limits, suspension, allowlists."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.models import Account, AdapterAllowance, AuditEntry, BaseModel, Plan, Tenant
from tests.console.opened import opened
from tests.console.people import client_of, member, operator
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(db: None) -> Client:
    return client_of(operator())


def text_of(answer: Any) -> str:
    """The page's words, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", answer.content.decode()).split())


def slugs(answer: Any) -> list[str]:
    return [tenant.slug for tenant in answer.context["listing"].items]


def test_the_list_is_searched_and_filtered(house: House, root: Client) -> None:
    for name in ("acme", "acorn", "beta"):
        house.actor(name)
    Tenant.objects.filter(slug="acorn").update(state="suspended", display_name="Oak & Sons")
    large = Plan.objects.create(name="large")
    Tenant.objects.filter(slug="beta").update(plan=large)
    assert slugs(root.get("/console/tenants")) == ["acme", "acorn", "beta"]
    assert slugs(root.get("/console/tenants", {"q": "AC"})) == ["acme", "acorn"]
    assert slugs(root.get("/console/tenants", {"q": "oak &"})) == ["acorn"]
    assert slugs(root.get("/console/tenants", {"state": "suspended"})) == ["acorn"]
    assert slugs(root.get("/console/tenants", {"plan": "large", "state": "nonsense"})) == ["beta"]
    assert "No account is like this" in text_of(root.get("/console/tenants", {"q": "nobody\0"}))
    shown = root.get("/console/tenants").content.decode()
    assert 'href="/console/t/acme/overview"' in shown
    assert "Oak &amp; Sons" in shown


def test_spend_and_running_requests_are_shown(acme: Actor, root: Client) -> None:
    month = timezone.now().replace(day=1).date()
    Account.objects.create(tenant=acme.tenant, subject="tenant", month=month, month_tokens=1234, month_cost=2_500_000)
    words = text_of(root.get("/console/tenants"))
    assert "1 234" in words
    assert "2.50 USD" in words
    assert "2.50 USD" in text_of(root.get("/console/t/acme/account"))


def test_as_many_queries_for_many_tenants(house: House, root: Client) -> None:
    counts = []
    for more in (3, 30):
        for number in range(more):
            house.actor(f"t{more}-{number}")
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert root.get("/console/tenants").status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_pages_keep_their_filters(house: House, root: Client) -> None:
    for number in range(52):
        house.actor(f"t{number:02}")
    Tenant.objects.filter(slug="t00").update(state="suspended")
    first = root.get("/console/tenants", {"state": "active", "q": "t"}).context["listing"]
    assert len(first.items) == 50
    second = root.get(first.more)
    assert slugs(second) == ["t51"]
    assert second.context["listing"].start == "/console/tenants?state=active&q=t"
    assert 'href="/console/tenants?state=active&amp;q=t"' in second.content.decode()
    assert root.get("/console/tenants", {"after": "nobody"}).status_code == 400


def test_nobody_is_there_yet(root: Client) -> None:
    assert "Make the first one" in text_of(root.get("/console/tenants"))


def test_a_new_account(house: House, root: Client) -> None:
    form = root.get("/console/tenants/new").content.decode()
    assert re.search(rf'value="{house.base.name}"[^>]*checked', form)
    wanted = {"slug": "acme", "display_name": "Acme Ltd", "plan": house.plan.name, "weight": "3"}
    answer = root.post("/console/tenants/new", {**wanted, "models": [house.base.name]})
    assert answer["Location"] == "/console/t/acme/account"
    made = Tenant.objects.get(slug="acme")
    assert (made.display_name, made.plan, made.weight) == ("Acme Ltd", house.plan, 3)
    assert [row.base_model for row in made.model_allowances.all()] == [house.base]
    entry = AuditEntry.objects.get(tenant=made, action="tenant.created")
    assert (entry.actor_kind, entry.actor_name) == ("operator", "root")
    assert "Acme Ltd is there" in text_of(root.get(answer["Location"]))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"slug": "Acme!"}, 'role="alert">Lower-case letters'),
        ({"slug": "taken"}, "There is a tenant &#x27;taken&#x27; already."),
        ({"slug": ""}, "This field is required"),
        ({"slug": "a" * 64}, "at most 63"),
        ({"slug": "a\0b"}, "Null characters"),
        ({"display_name": "x" * 201}, "at most 200"),
        ({"weight": "0"}, "greater than or equal to 1"),
        ({"weight": "9" * 400}, "less than or equal to 32767"),
        ({"plan": "nosuch"}, "nosuch is not one of the available choices"),
        ({"models": ["nosuch\0"]}, "not one of the available choices"),
    ],
)
def test_a_wrong_new_account(house: House, root: Client, wrong: dict[str, Any], words: str) -> None:
    house.actor("taken")
    wanted = {"slug": "acme", "display_name": "", "plan": "standard", "weight": "1", "models": []}
    answer = root.post("/console/tenants/new", wanted | wrong)
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not Tenant.objects.filter(slug="acme").exists()


def test_name_plan_and_weight_change(acme: Actor, root: Client) -> None:
    change = "/console/tenants/acme/change"
    answer = root.post(change, opened(root, change) | {"display_name": "New", "plan": "standard", "weight": "5"})
    assert answer["Location"] == "/console/t/acme/account"
    acme.tenant.refresh_from_db()
    assert (acme.tenant.display_name, acme.tenant.plan.name, acme.tenant.weight) == ("New", "standard", 5)
    assert AuditEntry.objects.filter(tenant=acme.tenant, action="tenant.changed").count() == 1


def test_stale_forms_take_nothing_back(acme: Actor, root: Client) -> None:
    Plan.objects.create(name="gold")
    change, limits = "/console/tenants/acme/change", "/console/tenants/acme/limits"
    stale = {page: opened(root, page) for page in (change, limits)}
    root.post(change, opened(root, change) | {"plan": "gold", "weight": "5"})
    root.post(limits, opened(root, limits) | {"requests_per_minute": "60", "budget_hard": "12.5"})
    assert root.post(change, stale[change] | {"display_name": "New"}).status_code == 302
    assert root.post(limits, stale[limits] | {"tokens_per_day": "5"}).status_code == 302
    now = Tenant.objects.select_related("plan").get(slug="acme")
    assert (now.display_name, now.plan.name, now.weight) == ("New", "gold", 5)
    assert (now.requests_per_minute, now.budget_hard, now.tokens_per_day) == (60, 12_500_000, 5)


def test_limits_of_its_own_go_before_the_plans(house: House, acme: Actor, root: Client) -> None:
    Plan.objects.filter(pk=house.plan.pk).update(requests_per_minute=600, budget_hard=7_000_000)
    form = root.get("/console/tenants/acme/limits").content.decode()
    assert "the plan&#x27;s: 600" in form
    assert "the plan&#x27;s: 7.00 USD" in form
    wanted = {"requests_per_minute": "60", "budget_hard": "12.5", "max_adapter_bytes": "20 GB"}
    page = "/console/tenants/acme/limits"
    assert root.post(page, opened(root, page) | wanted)["Location"] == "/console/t/acme/account"
    acme.tenant.refresh_from_db()
    assert acme.tenant.requests_per_minute == 60
    assert acme.tenant.budget_hard == 12_500_000
    assert acme.tenant.max_adapter_bytes == 20 * 10**9
    words = text_of(root.get("/console/t/acme/account"))
    assert "Requests per minute 60 0 60" in words
    assert "12.50 USD" in words
    again = root.get("/console/tenants/acme/limits").content.decode()
    assert 'value="12.50"' in again
    assert 'value="20 GB"' in again
    root.post(page, opened(root, page) | {"requests_per_minute": ""})
    acme.tenant.refresh_from_db()
    assert acme.tenant.requests_per_minute is None


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"requests_per_minute": "0"}, "requests_per_minute", "greater than or equal to 1"),
        ({"requests_per_minute": "many"}, "requests_per_minute", "Enter a whole number"),
        ({"tokens_per_day": "9" * 30}, "tokens_per_day", "less than or equal to"),
        ({"max_adapters": "-1"}, "max_adapters", "greater than or equal to 0"),
        ({"max_adapter_bytes": "a lot"}, "max_adapter_bytes", "A size is a number and a unit"),
        ({"budget_soft": "2", "budget_hard": "1"}, "budget_soft", "above budget_hard"),
    ],
)
def test_wrong_limits_stand_beside_their_field(
    acme: Actor, root: Client, wrong: dict[str, str], field: str, words: str
) -> None:
    answer = root.post("/console/tenants/acme/limits", opened(root, "/console/tenants/acme/limits") | wrong)
    assert answer.status_code == 400
    assert words in " ".join(answer.context["form"].errors[field])
    assert acme.tenant.own_limits() == Tenant.objects.get(slug="acme").own_limits()


def test_suspending_asks_and_says_what_it_ends(acme: Actor, root: Client) -> None:
    member(acme.tenant)
    asked = text_of(root.get("/console/tenants/acme/suspend"))
    assert "0 running requests of it will end" in asked
    assert "1 key" in asked
    assert "1 member " in asked
    assert "The account sees it, in its audit log and webhook." in asked
    acme.tenant.refresh_from_db()
    assert acme.tenant.state == "active"
    assert root.post("/console/tenants/acme/suspend", {"reason": "x" * 501}).status_code == 400
    answer = root.post("/console/tenants/acme/suspend", {"reason": "invoice unpaid"})
    assert answer["Location"] == "/console/t/acme/account"
    entry = AuditEntry.objects.get(tenant=acme.tenant, action="tenant.suspended")
    assert entry.after == {"state": "suspended", "reason": "invoice unpaid"}
    page = root.get("/console/t/acme/account").content.decode()
    assert "This account is suspended" in page
    assert "/console/tenants/acme/resume" in page
    root.post("/console/tenants/acme/resume", {})
    acme.tenant.refresh_from_db()
    assert acme.tenant.state == "active"


def test_only_an_unused_account_is_deleted(house: House, acme: Actor, root: Client) -> None:
    assert "Type acme to go on" in text_of(root.post("/console/tenants/acme/delete", {"word": "other"}))
    used = house.actor("used")
    house.adapter(used, "pirate")
    answer = root.post("/console/tenants/used/delete", {"word": "used"})
    assert answer.status_code == 409
    assert "it can only be suspended" in text_of(answer)
    assert root.post("/console/tenants/acme/delete", {"word": "acme"})["Location"] == "/console/tenants"
    assert list(Tenant.objects.values_list("slug", flat=True)) == ["used"]


def test_base_models_are_allowed_and_taken_away(house: House, acme: Actor, root: Client) -> None:
    other = BaseModel.objects.create(name="llama-2", fingerprint="0" * 64, directory="/nowhere", context_length=64)
    root.post("/console/tenants/acme/models", {"model": "llama-2"})
    assert set(acme.tenant.model_allowances.values_list("base_model__name", flat=True)) == {house.base.name, "llama-2"}
    assert "every base model that there is" in text_of(root.get("/console/tenants/acme/models"))
    BaseModel.objects.create(name="llama-3", fingerprint="1" * 64, directory="/nowhere", context_length=64)
    wrong = root.post("/console/tenants/acme/models", {"model": "nosuch"})
    assert "not one of the available choices" in text_of(wrong)
    house.adapter(acme, "pirate")
    asked = text_of(root.get(f"/console/tenants/acme/models/{house.base.name}/withdraw"))
    assert "1 of its own, 0 shared ones" in asked
    root.post(f"/console/tenants/acme/models/{house.base.name}/withdraw")
    assert [row.base_model for row in acme.tenant.model_allowances.all()] == [other]
    assert root.get(f"/console/tenants/acme/models/{house.base.name}/withdraw").status_code == 404
    assert AuditEntry.objects.filter(tenant=acme.tenant, action="model.forbidden").count() == 1


def test_anothers_adapter_is_allowed_and_taken_away(house: House, acme: Actor, root: Client) -> None:
    giver = house.actor("giver")
    house.adapter(giver, "pirate")
    for wrong, words in (
        ("giver/nosuch", "There is no adapter"),
        ("pirate", "owner/name"),
        ("acme/", "owner/name"),
        ("giver/pi\0rate", "Null characters"),
    ):
        answer = root.post("/console/tenants/acme/adapters", {"adapter": wrong})
        assert words in " ".join(answer.context["form"].errors["adapter"])
    root.post("/console/tenants/acme/adapters", {"adapter": "giver/pirate"})
    assert AdapterAllowance.objects.filter(tenant=acme.tenant).count() == 1
    assert "giver/pirate" in text_of(root.get("/console/t/acme/account"))
    shared = "/console/t/acme/adapters/-/shared"
    for query in ("giver/p", "er/pi", "PIRATE"):
        assert "giver/pirate" in text_of(root.get(shared, {"q": query}))
    assert "No adapter shared" in text_of(root.get(shared, {"q": "parrot"}))
    withdraw = "/console/tenants/acme/adapters/giver/pirate/withdraw"
    assert withdraw in root.get(shared).content.decode()
    theirs = client_of(member(acme.tenant)).get(shared).content.decode()
    assert "giver/pirate" in theirs
    assert withdraw not in theirs
    assert "Change" not in theirs, "only operators allow and take away"
    own = root.post("/console/tenants/giver/adapters", {"adapter": "giver/pirate"})
    assert "own" in " ".join(own.context["form"].errors["adapter"])
    root.post("/console/tenants/acme/adapters/giver/pirate/withdraw")
    assert not AdapterAllowance.objects.filter(tenant=acme.tenant).exists()
    assert "Nobody shares" in text_of(root.get(shared))
