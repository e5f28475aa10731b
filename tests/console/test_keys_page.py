"""The keys' pages: what each role may, texts that are shown once, forms that are sent twice, questions with numbers."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.async_api import Page, expect
from uuid6 import uuid7

from tenants.callers import Role
from tenants.models import Adapter, ApiKey, AuditEntry, IdempotentRequest, Member, ModelAllowance
from tests.console.conftest import shoot
from tests.console.opened import held, opened
from tests.console.people import client_of, member, operator, sign_in
from tests.gateway.house import Actor, House, Process

TEXT = re.compile(r"lpx_live_[0-9A-Za-z]{12}_[0-9A-Za-z]{39}")
NEW = "/console/t/acme/keys/new"


@pytest.fixture
def place(db: None, tiny_model_dir: object) -> House:
    return House(tiny_model_dir)  # type: ignore[arg-type]


@pytest.fixture
def tenant(place: House) -> Actor:
    return place.actor("acme")


@pytest.fixture
def owner(tenant: Actor) -> Client:
    return client_of(member(tenant.tenant, name="ada"))


def keys_of(actor: Actor) -> list[ApiKey]:
    return list(ApiKey.objects.filter(tenant=actor.tenant).exclude(pk=actor.key.pk).order_by("pk"))


def reread(key: ApiKey) -> ApiKey:
    found: ApiKey = ApiKey.objects.get(tenant=key.tenant_id, pk=key.pk)
    return found


def token(client: Client, address: str = NEW) -> str:
    """The one-time token of a form that was just opened."""
    found = re.search(r'name="once" value="(\w+)"', client.get(address).content.decode())
    assert found is not None
    return found[1]


def issued(client: Client, **fields: Any) -> Any:
    """The answer to a form for a new key."""
    return client.post(NEW, {"once": token(client), "scope": "inference", **fields})


def run_requests(house: House, actor: Actor, count: int) -> None:
    now = timezone.now()
    with connection.cursor() as cursor:
        for _ in range(count):
            cursor.execute(
                "INSERT INTO tenants_inferencerequest (id, tenant_id, key_id, base_model_id, state, prompt_tokens,"
                " max_tokens, held_cost, emitted_tokens, admitted_at, lease_expires_at)"
                " VALUES (%s, %s, %s, %s, 'running', 1, 1, 0, 0, %s, %s)",
                [str(uuid7()), actor.tenant.pk, actor.key.pk, house.base.pk, now, now + timedelta(minutes=1)],
            )


@pytest.mark.django_db
def test_an_owner_issues_a_key_with_everything_that_can_be_said_of_one(
    owner: Client, place: House, tenant: Actor
) -> None:
    pirate = place.adapter(tenant, "pirate")
    theirs = member(tenant.tenant, Role.DEVELOPER, "dev").memberships.get(tenant=tenant.tenant)
    answer = issued(
        owner,
        name="ci & cd",
        member=str(theirs.public_id),
        expires_at="2090-01-31T12:30",
        models=f"{pirate}\r\n\r\n {place.base.name} ",
        networks="203.0.113.7\n2001:db8::/32",
        requests_per_minute="60",
        budget_hard="12.50",
    )
    (key,) = keys_of(tenant)
    page = answer.content.decode()
    assert answer.status_code == 200
    (text,) = set(TEXT.findall(page))
    assert text.split("_")[2] == key.public_id
    assert "no-store" in answer["Cache-Control"]
    assert (key.name, key.scope, key.member) == ("ci & cd", "inference", theirs)
    assert key.expires_at is not None
    assert key.expires_at.isoformat() == "2090-01-31T12:30:00+00:00"
    assert key.allowed_addresses == ["203.0.113.7/32", "2001:db8::/32"]
    assert (key.requests_per_minute, key.budget_hard) == (60, 12_500_000)
    shown = owner.get(f"/console/t/acme/keys/{key.public_id}").content.decode()
    assert "ci &amp; cd" in shown
    assert pirate in shown
    assert "2001:db8::/32" in shown
    assert "12.50" in shown
    entry = AuditEntry.objects.get(tenant=tenant.tenant, action="key.issued")
    assert (entry.actor_name, entry.subject) == ("ada", key.public_id)
    assert text not in str(entry.after)
    assert not TEXT.search(shown)


@pytest.mark.django_db
def test_a_new_key_comes_with_its_first_request(owner: Client, place: House, tenant: Actor) -> None:
    def shown(**fields: Any) -> tuple[str, str]:
        """The base URL and the command of the page, without the key's text."""
        context = issued(owner, **fields).context
        assert context["text"] not in context["first"].curl
        return context["first"].base_url, context["first"].curl

    messages = '[{"role": "user", "content": "Hello!"}]'
    assert shown() == (
        "http://localhost/v1",
        "curl http://localhost/v1/chat/completions \\\n"
        '  -H "Authorization: Bearer $LORAPLEX_API_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"""  -d '{{"model": "{place.base.name}", "messages": {messages}, "max_tokens": 50}}'""",
    )
    pirate = place.adapter(tenant, "pirate")
    assert f'"model": "{pirate}"' in shown(models=pirate)[1]
    base_url, command = shown(scope="manage")
    assert base_url == "http://localhost/api"
    assert command.startswith("curl http://localhost/api/limits ")
    ModelAllowance.objects.filter(tenant=tenant.tenant).delete()
    assert shown()[1].startswith("curl http://localhost/v1/models ")


@pytest.mark.django_db
def test_a_form_sent_twice_makes_one_key_and_says_so(owner: Client, tenant: Actor) -> None:
    form = {"once": token(owner), "scope": "inference", "name": "twice"}
    first, second = owner.post(NEW, form), owner.post(NEW, form)
    (key,) = keys_of(tenant)
    assert TEXT.search(first.content.decode())
    page = second.content.decode()
    assert "This key was issued already" in page
    assert key.public_id in page
    assert not TEXT.search(page)
    assert first.content.decode().split("lpx_live_")[1][13:52].encode() not in bytes(
        IdempotentRequest.objects.get().body
    )
    otherwise = owner.post(NEW, {**form, "name": "another"})
    assert "sent before, with other words" in otherwise.content.decode()
    assert len(keys_of(tenant)) == 1
    again = re.search(r'name="once" value="(\w+)"', otherwise.content.decode())
    assert again is not None
    assert again[1] != form["once"]
    owner.post(NEW, {**form, "name": "another", "once": again[1]})
    assert [key.name for key in keys_of(tenant)] == ["twice", "another"]


@pytest.mark.django_db
def test_one_persons_token_is_nobody_elses(owner: Client, tenant: Actor) -> None:
    form = {"once": "0" * 32, "scope": "inference"}
    owner.post(NEW, form)
    client_of(member(tenant.tenant)).post(NEW, form)
    assert len(keys_of(tenant)) == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "x" * 101}, "at most 100 characters"),
        ({"name": "a\0b"}, "Null characters"),
        ({"scope": "admin"}, "Select a valid choice"),
        ({"member": "nobody"}, "Select a valid choice"),
        ({"expires_at": "2001-01-01T00:00"}, ">It has to be in the future"),
        ({"expires_at": "soon"}, "Enter a valid date/time"),
        ({"models": "globex/secret"}, "has no model &#x27;globex/secret&#x27;"),
        ({"models": "\n".join(f"a/{n}" for n in range(1001))}, "1000 are the most"),
        ({"networks": "203.0.113.7/24"}, "has bits beyond its prefix"),
        ({"networks": "localhost"}, "is no address or network"),
        ({"requests_per_minute": "0"}, "greater than or equal to 1"),
        ({"requests_per_minute": str(2**31)}, "less than or equal to 2147483647"),
        ({"tokens_per_day": "9" * 30}, "less than or equal to"),
        ({"tokens_per_day": "9" * 5000}, "Enter a whole number"),
        ({"budget_soft": "2", "budget_hard": "1"}, "never reached"),
        ({"budget_hard": "-1"}, "greater than or equal to 0"),
        ({"once": ""}, "out of date"),
        ({"once": "x" * 65}, "out of date"),
        ({"once": "a\u00e9 b"}, "out of date"),
    ],
)
def test_what_is_wrong_stands_beside_it_and_makes_no_key(
    wrong: dict[str, str], words: str, owner: Client, tenant: Actor
) -> None:
    answer = issued(owner, **wrong)
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert keys_of(tenant) == []
    assert not IdempotentRequest.objects.exists()


@pytest.mark.django_db
def test_a_developer_sees_and_makes_its_own_keys_only(owner: Client, tenant: Actor) -> None:
    issued(owner, name="the account's")
    (accounts,) = keys_of(tenant)
    developer = client_of(member(tenant.tenant, Role.DEVELOPER, "dev"))
    assert 'name="member"' not in developer.get(NEW).content.decode()
    other = Member.objects.get(tenant=tenant.tenant, user__username="ada")
    assert TEXT.search(issued(developer, name="mine", member=str(other.public_id)).content.decode())
    mine = keys_of(tenant)[-1]
    assert str(mine.member and mine.member.user) == "dev"
    listed = developer.get("/console/t/acme/keys").content.decode()
    assert "mine" in listed
    assert accounts.public_id not in listed
    for path in ("", "/change", "/rotate", "/revoke"):
        assert developer.get(f"/console/t/acme/keys/{accounts.public_id}{path}").status_code == 404
        assert developer.get(f"/console/t/acme/keys/{mine.public_id}{path}").status_code == 200
    assert developer.post(f"/console/t/acme/keys/{accounts.public_id}/revoke").status_code == 404
    accounts.refresh_from_db(from_queryset=ApiKey.objects.filter(tenant=tenant.tenant))
    assert accounts.state == "active"


@pytest.mark.django_db
def test_a_viewer_makes_none(tenant: Actor) -> None:
    viewer = client_of(member(tenant.tenant, Role.VIEWER))
    page = viewer.get("/console/t/acme/keys").content.decode()
    assert "You have no key here" in page
    assert NEW not in page
    assert viewer.post(NEW, {"once": "a", "scope": "inference"}).status_code == 403
    assert keys_of(tenant) == []


@pytest.mark.django_db
def test_only_what_is_said_otherwise_is_changed(owner: Client, tenant: Actor) -> None:
    issued(owner, name="before", expires_at="2090-01-31T12:30", networks="203.0.113.7", tokens_per_day="1000")
    (key,) = keys_of(tenant)
    address = f"/console/t/acme/keys/{key.public_id}/change"
    page = owner.get(address).content.decode()
    assert 'value="2090-01-31T12:30"' in page
    assert "203.0.113.7/32" in page
    ApiKey.objects.filter(pk=key.pk, tenant=tenant.tenant).update(expires_at="2090-01-31T12:30:59Z")
    answer = owner.post(address, opened(owner, address) | {"name": "after", "budget_hard": "0.5"})
    assert (answer.status_code, answer["Location"]) == (302, f"/console/t/acme/keys/{key.public_id}")
    key.refresh_from_db(from_queryset=ApiKey.objects.filter(tenant=tenant.tenant))
    assert (key.name, key.budget_hard, key.tokens_per_day) == ("after", 500_000, 1000)
    assert key.expires_at is not None
    assert key.expires_at.second == 59
    actions = AuditEntry.objects.filter(tenant=tenant.tenant).order_by("-pk").values_list("action", flat=True)
    assert set(actions[:2]) == {"key.changed", "key.limits_changed"}
    nothing = dict.fromkeys(("expires_at", "networks", "tokens_per_day", "budget_hard"), "")
    owner.post(address, opened(owner, address) | nothing)
    key.refresh_from_db(from_queryset=ApiKey.objects.filter(tenant=tenant.tenant))
    left: list[object] = [key.expires_at, key.allowed_addresses, key.tokens_per_day, key.budget_hard]
    assert left == [None] * 4
    refused = owner.post(address, opened(owner, address) | {"budget_soft": "2", "budget_hard": "1"})
    assert "never reached" in refused.content.decode()


@pytest.mark.django_db
def test_a_rotation_shows_the_successor_once_and_keeps_the_line(owner: Client, tenant: Actor) -> None:
    old = tenant.key
    address = f"/console/t/acme/keys/{old.public_id}/rotate"
    form = {"once": token(owner, address), "overlap": "3600"}
    first, second = owner.post(address, form), owner.post(address, form)
    (new,) = keys_of(tenant)
    (text,) = set(TEXT.findall(first.content.decode()))
    assert text.split("_")[2] == new.public_id
    assert "This key was issued already" in second.content.decode()
    old.refresh_from_db(from_queryset=ApiKey.objects.filter(tenant=tenant.tenant))
    assert old.expires_at is not None
    assert timedelta(minutes=59) < old.expires_at - timezone.now() <= timedelta(hours=1)
    page = owner.get(f"/console/t/acme/keys/{old.public_id}").content.decode()
    assert "It was rotated and ends" in page
    assert new.public_id in page
    assert f"{old.public_id}/rotate" not in page
    again = owner.post(address, {"once": token(owner, address), "overlap": "0"})
    assert f"has a successor already: {new.public_id}" in again.content.decode()
    assert "Select a valid choice" in owner.post(address, {**form, "once": "b", "overlap": "5"}).content.decode()
    changing = owner.get(f"/console/t/acme/keys/{new.public_id}/change").content.decode()
    assert "1 other key of its line has the same limits" in changing


@pytest.mark.django_db
def test_what_the_pages_say_of_a_line_is_what_changes_with_it(owner: Client, tenant: Actor) -> None:
    address = f"/console/t/acme/keys/{tenant.key.public_id}"
    owner.post(f"{address}/rotate", {"once": token(owner, f"{address}/rotate"), "overlap": "3600"})
    (new,) = keys_of(tenant)
    change = f"/console/t/acme/keys/{new.public_id}/change"
    page = owner.get(change).content.decode()
    assert "the same limits, models and addresses: what you change of them holds for all" in page
    assert "Name and end are this key's alone." in page
    assert "They share limits, models, addresses and" in owner.get(address).content.decode()
    owner.post(change, opened(owner, change) | {"name": "newer", "networks": "203.0.113.7", "max_concurrent": "3"})
    old = reread(tenant.key)
    assert (old.allowed_addresses, old.max_concurrent) == (["203.0.113.7/32"], 3)
    assert old.name != "newer"
    assert "203.0.113.7/32" in owner.get(address).content.decode()


@pytest.mark.django_db
def test_a_stale_form_lifts_no_restriction(owner: Client, place: House, tenant: Actor) -> None:
    issued(owner, name="ci", tokens_per_day="1000", expires_at="2090-01-31T12:30")
    (key,) = keys_of(tenant)
    address = f"/console/t/acme/keys/{key.public_id}/change"
    bobs = client_of(member(tenant.tenant, name="bob"))
    stale = opened(bobs, address)
    mine = {"networks": "203.0.113.7", "scope": "some", "models": place.base.name, "max_concurrent": "2"}
    owner.post(address, opened(owner, address) | mine | {"tokens_per_day": "5", "expires_at": "2080-01-31T12:30"})
    refused = bobs.post(address, stale | {"name": "renamed", "budget_soft": "2", "budget_hard": "1"})
    assert "never reached" in refused.content.decode()
    assert held(refused)["shown"] == stale["shown"], "an error is no other opening of the form"
    assert bobs.post(address, held(refused) | {"budget_soft": ""}).status_code == 302
    now = reread(key)
    assert (now.name, now.budget_hard) == ("renamed", 1_000_000)
    assert now.allowed_addresses == ["203.0.113.7/32"]
    assert (now.only_models, now.only_adapters) == ([place.base.pk], [])
    assert (now.max_concurrent, now.tokens_per_day) == (2, 5)
    assert now.expires_at is not None
    assert now.expires_at.year == 2080


@pytest.mark.django_db
@pytest.mark.parametrize("shown", [None, "", "no", "[]", "{}", '{"name": "ci"}', "[" * 100_000, "\0", '{"name": []}'])
def test_a_form_that_does_not_say_what_it_showed_is_shown_afresh(
    shown: str | None, owner: Client, place: House, tenant: Actor
) -> None:
    address = f"/console/t/acme/keys/{tenant.key.public_id}/change"
    stale = opened(owner, address)
    ApiKey.objects.filter(tenant=tenant.tenant).update(allowed_addresses=["203.0.113.7/32"], name="ci")
    lists = json.dumps({name: [] for name in json.loads(stale.pop("shown"))})
    assert owner.post(address, stale | {"shown": lists}).status_code == 400
    answer = owner.post(address, stale | {"name": "renamed"} | ({} if shown is None else {"shown": shown}))
    assert answer.status_code == 400
    assert "It shows what holds now" in answer.content.decode()
    assert held(answer) == opened(owner, address)
    assert reread(tenant.key).name == "ci"


@pytest.mark.django_db
def test_a_key_whose_models_are_gone_says_so_and_stays_restricted(owner: Client, place: House, tenant: Actor) -> None:
    key = tenant.key
    ApiKey.objects.filter(tenant=tenant.tenant).update(only_models=[], only_adapters=[10**6])
    address = f"/console/t/acme/keys/{key.public_id}/change"
    assert "The models that it was restricted to are gone" in owner.get(address).content.decode()
    form = opened(owner, address)
    assert (form["scope"], form["models"]) == ("some", "")
    assert owner.post(address, form | {"name": "renamed"}).status_code == 302
    assert (reread(key).name, reread(key).only_adapters) == ("renamed", [10**6])
    assert owner.post(address, opened(owner, address) | {"scope": "every"}).status_code == 302
    assert (reread(key).only_models, reread(key).only_adapters) == (None, None)
    assert "are gone" not in owner.get(address).content.decode()


@pytest.mark.django_db
def test_models_are_named_or_all_chosen_not_both(owner: Client, place: House, tenant: Actor) -> None:
    address = f"/console/t/acme/keys/{tenant.key.public_id}/change"
    form = opened(owner, address)
    both = owner.post(address, form | {"models": place.base.name})
    assert "All models are chosen above" in both.content.decode()
    assert "Name at least one model." in owner.post(address, form | {"scope": "some"}).content.decode()
    owner.post(address, form | {"scope": "some", "models": place.base.name})
    assert reread(tenant.key).only_models == [place.base.pk]
    owner.post(address, opened(owner, address) | {"scope": "every"})
    assert reread(tenant.key).only_models is None


def test_a_playgrounds_key_says_whose_it_is_and_is_not_rotated(tenant: Actor, owner: Client) -> None:
    root = operator()
    client_of(root).post("/api/operator/tenants/acme/playground-tickets", {}, content_type="application/json")
    (key,) = keys_of(tenant)
    address = f"/console/t/acme/keys/{key.public_id}"
    page = owner.get(address).content.decode()
    assert "root (operator of the platform), for the playground" in page
    assert f"{address}/rotate" not in page
    assert f"{address}/revoke" in page
    answer = owner.post(f"{address}/rotate", {"once": token(owner), "overlap": "0", "expires_at": ""})
    assert "Nobody has the text of a playground&#x27;s key." in answer.content.decode()
    assert keys_of(tenant) == [key]


@pytest.mark.django_db
def test_a_revocation_asks_and_says_what_it_ends(owner: Client, place: House, tenant: Actor) -> None:
    key = tenant.key
    run_requests(place, tenant, 3)
    key.last_used_at = timezone.now().replace(year=2030, month=1, day=2)
    key.save()
    address = f"/console/t/acme/keys/{key.public_id}/revoke"
    question = owner.get(address).content.decode()
    assert "3 requests that run with it end within 5 seconds" in question
    assert 'last used on <time datetime="2030-01-02T' in question, "the page's script writes it in the reader's zone"
    assert ApiKey.objects.get(tenant=tenant.tenant).state == "active"
    answer = owner.post(address)
    assert answer["Location"] == f"/console/t/acme/keys/{key.public_id}"
    assert ApiKey.objects.get(tenant=tenant.tenant).state == "revoked"
    assert AuditEntry.objects.filter(tenant=tenant.tenant, action="key.revoked").count() == 1
    assert "It is revoked already" in owner.get(address).content.decode()
    page = owner.get(f"/console/t/acme/keys/{key.public_id}").content.decode()
    assert "revoked" in page
    assert address not in page
    for path in ("change", "rotate"):
        ended = owner.get(f"/console/t/acme/keys/{key.public_id}/{path}")
        assert ended.status_code == 409
        assert "is revoked" in ended.content.decode()


@pytest.mark.django_db
def test_an_operator_acts_as_an_owner_under_its_own_name(tenant: Actor) -> None:
    root = client_of(operator())
    assert TEXT.search(issued(root, name="by root").content.decode())
    entry = AuditEntry.objects.get(tenant=tenant.tenant, action="key.issued")
    assert (entry.actor_kind, entry.actor_name) == ("operator", "root")


@pytest.mark.django_db
def test_the_list_is_searched_and_narrowed(place: House, tenant: Actor) -> None:
    stranger = place.actor("globex")
    dev = member(tenant.tenant, Role.DEVELOPER, "dev").memberships.get(tenant=tenant.tenant)
    made, _ = ApiKey.issue(tenant.tenant, name="Batch machine", member=dev)
    dead, _ = ApiKey.issue(tenant.tenant, name="old batch")
    ApiKey.objects.filter(tenant=tenant.tenant, pk=dead.pk).update(revoked_at=timezone.now())
    late, _ = ApiKey.issue(tenant.tenant, name="late", expires_at=timezone.now() + timedelta(days=1))
    ApiKey.objects.filter(tenant=tenant.tenant, pk=late.pk).update(expires_at=timezone.now())
    client = client_of(operator())

    def found(address: str, **query: str) -> set[str]:
        return {key.public_id for key in client.get(address, query).context["listing"].items}

    own, everywhere = "/console/t/acme/keys", "/console/keys"
    assert found(own, q="batch") == {made.public_id, dead.public_id}
    assert found(own, q="batch", state="active") == {made.public_id}
    assert found(own, state="expired") == {late.public_id}
    assert found(own, state="revoked") == {dead.public_id}
    assert found(own, q="dev") == {made.public_id}
    assert found(own, q="acme") == set()
    assert found(own, q=made.public_id) == found(own, q=f"lpx_live_{made.public_id}_…") == {made.public_id}
    assert found(own, q=stranger.key.public_id) == set()
    assert found(everywhere, q="globex") == {stranger.key.public_id}
    assert found(everywhere, q=stranger.key.public_id) == {stranger.key.public_id}
    assert "No key was found for" in client.get(own, {"q": "a\0%_b", "state": "active"}).content.decode()
    assert f"/console/t/globex/keys/{stranger.key.public_id}" in client.get(everywhere).content.decode()


@pytest.mark.django_db
def test_long_lists_have_pages_and_a_constant_number_of_queries(place: House, tenant: Actor) -> None:
    dev = member(tenant.tenant, Role.DEVELOPER, "dev").memberships.get(tenant=tenant.tenant)
    root = client_of(operator())

    def queries(address: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert root.get(address).status_code == 200
        return len(captured)

    def issue(count: int) -> None:
        for number in range(count):
            ApiKey.issue(tenant.tenant, name=f"k{number}", member=dev, only_models=[place.base.pk], only_adapters=[])

    issue(3)
    few = [queries(address) for address in ("/console/t/acme/keys", "/console/keys")]
    issue(57)
    many = [queries(address) for address in ("/console/t/acme/keys", "/console/keys")]
    assert few == many
    assert max(many) <= 12
    first = root.get("/console/t/acme/keys", {"state": "active"}).context["listing"]
    assert len(first.items) == 50
    second = root.get(first.more).context["listing"]
    assert [key.name for key in second.items] == [f"k{n}" for n in range(6, -1, -1)] + ["k2", "k1", "k0", ""]
    assert first.more != ""
    assert second.more == ""


@pytest.mark.browser
@pytest.mark.slow
async def test_issue_rotate_and_revoke(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    await sign_in(page.context, gateway.url, member(acme.tenant, name="ada"))
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(f"{gateway.url}/console/t/acme/keys")
    await page.get_by_role("button", name="Issue a key").click()
    await page.get_by_label("Name").fill("ci")
    await page.get_by_text("Limits of its own").click()
    await page.get_by_label("Requests per minute").fill("60")
    await shoot(page, "key-new-open")
    await page.get_by_role("button", name="Issue the key").dblclick()
    text = await page.get_by_label("ci").input_value()
    assert TEXT.fullmatch(text)
    await shoot(page, "key-shown")
    await page.get_by_role("button", name="Copy", exact=True).click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == text
    await page.get_by_role("button", name="Copy the request").click()
    await expect(page.get_by_role("button", name="Copied")).to_have_count(2)
    command = await page.evaluate("navigator.clipboard.readText()")
    sent = {**os.environ, "LORAPLEX_API_KEY": text}
    answer = await sync_to_async(subprocess.run)(["sh", "-c", command], env=sent, capture_output=True, check=True)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"].startswith(" 0 1 2")
    await page.get_by_role("link", name="I have copied it").click()
    await expect(page.locator("#limits")).to_contain_text("Requests per minute")
    assert len(keys_of(acme)) == 1

    await page.get_by_role("button", name="Rotate").click()
    await page.get_by_label("goes on working").select_option(label="1 hour")
    await page.get_by_role("button", name="Rotate it").click()
    await expect(page.get_by_label("ci")).not_to_have_value(text)
    await page.get_by_role("link", name="I have copied it").click()
    await expect(page.get_by_role("region", name="Its line").locator("tbody tr")).to_have_count(2)
    await shoot(page, "key-line")
    await page.get_by_role("button", name="Revoke").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("No request runs with it now")
    await shoot(page, "key-revoke-dialog")
    await dialog.get_by_role("button", name="Revoke it").click()
    await expect(page.get_by_role("status")).to_have_text("The key ci is revoked.")
    first, second = keys_of(acme)
    assert (first.state, second.state) == ("active", "revoked")

    await page.goto(f"{gateway.url}/console/t/acme/keys")
    await page.get_by_label("State").select_option("revoked")
    await expect(page.locator("#list tbody tr")).to_have_count(1)
    await page.get_by_label("Search").fill("nothing such")
    await expect(page.locator("#list")).to_contain_text("No key was found for")


@pytest.mark.browser
@pytest.mark.parametrize("zone", ["Asia/Kolkata"])
async def test_a_browser_sends_what_it_was_shown(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    """Several lines and a time in the reader's zone are no change where nobody touched them."""
    models = [house.base.pk], [Adapter.objects.unscoped().get(name=house.adapter(acme, "pirate").partition("/")[2]).pk]
    rows = ApiKey.objects.filter(tenant=acme.tenant)
    rows.update(only_models=models[0], only_adapters=models[1], expires_at="2090-01-31T12:30:59Z")
    rows.update(allowed_addresses=["203.0.113.7/32", "2001:db8::/32"])
    await sign_in(page.context, gateway.url, member(acme.tenant, name="ada"))
    await page.goto(f"{gateway.url}/console/t/acme/keys/{acme.key.public_id}/change")
    await expect(page.get_by_label("Only these models")).to_have_value(f"{house.base.name}\nacme/pirate")
    rows.update(allowed_addresses=["198.51.100.1/32"], only_models=[])
    await shoot(page, "key-change")
    await page.get_by_role("textbox", name="Name").fill("renamed")
    await page.get_by_role("button", name="Change it").click()
    await expect(page.get_by_role("status")).to_contain_text("The key was changed.")
    key = reread(acme.key)
    assert (key.name, key.allowed_addresses) == ("renamed", ["198.51.100.1/32"])
    assert (key.only_models, key.only_adapters) == ([], models[1])
    assert key.expires_at is not None
    assert key.expires_at.second == 59
