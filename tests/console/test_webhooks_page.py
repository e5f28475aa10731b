"""The webhooks' pages: what each role may, secrets that are shown once, deliveries, and questions with numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.async_api import Page, expect

from tenants import webhooks
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import AuditEntry, IdempotentRequest, Webhook, WebhookDelivery
from tenants.webhook_delivery import deliver
from tests.console.conftest import shoot
from tests.console.opened import opened
from tests.console.people import client_of, member, sign_in
from tests.console.samples import delivered_webhook
from tests.gateway.house import Actor, House, Process
from tests.tenants.receiver import Receiver, receiver

SECRET = re.compile(r"whsec_[0-9A-Za-z+/=]{44}")
BASE = "/console/t/acme/webhooks"
NEW = f"{BASE}/new"
BY = Doer("command", "tests")


@pytest.fixture
def place(db: None, tiny_model_dir: object) -> House:
    return House(tiny_model_dir)  # type: ignore[arg-type]


@pytest.fixture
def tenant(place: House) -> Actor:
    return place.actor("acme")


@pytest.fixture
def owner(tenant: Actor) -> Client:
    return client_of(member(tenant.tenant, name="ada"))


@pytest.fixture
def server(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOK_HTTP = True
    settings.WEBHOOK_NETWORKS = (ip_network("127.0.0.0/8"),)
    with receiver() as running:
        running.wait.set()
        yield running


def hooks(actor: Actor) -> list[Webhook]:
    return list(Webhook.objects.filter(tenant=actor.tenant).order_by("pk"))


def token(client: Client, address: str = NEW) -> str:
    found = re.search(r'name="once" value="(\w+)"', client.get(address).content.decode())
    assert found is not None
    return found[1]


def told(actor: Actor) -> Webhook:
    found, _ = webhooks.create(BY, actor.tenant, url="https://example.org/hook?key=theirs", events=["*"])
    return found


@pytest.mark.django_db
def test_the_secret_is_shown_once_even_if_the_form_is_sent_twice(owner: Client, tenant: Actor) -> None:
    form = {"once": token(owner), "url": "https://example.org/hook", "events": ["key.revoked", "batch.failed"]}
    first, second = owner.post(NEW, form), owner.post(NEW, form)
    (hook,) = hooks(tenant)
    (secret,) = set(SECRET.findall(first.content.decode().replace("&#x2B;", "+")))
    assert "no-store" in first["Cache-Control"]
    assert hook.events == ["batch.failed", "key.revoked"]
    assert "carried out once" in second.content.decode()
    assert not SECRET.search(second.content.decode())
    assert secret.encode() not in bytes(IdempotentRequest.objects.get().body)
    assert not SECRET.search(owner.get(f"{BASE}/{hook.pk}").content.decode())
    entry = AuditEntry.objects.get(tenant=tenant.tenant, action="webhook.created")
    assert (entry.actor_name, entry.subject) == ("ada", str(hook.pk))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"url": ""}, "This field is required"),
        ({"url": "http://example.org/hook"}, ">It has to begin with https://"),
        ({"url": "https://203.0.113.9:x/"}, ">It is no address of the form"),
        ({"url": "https://127.0.0.1/"}, "127.0.0.1"),
        ({"url": "https://example.org/" + "x" * 2000}, "at most 2000 characters"),
        ({"events": []}, "Choose at least one kind of event"),
        ({"events": ["nothing.such"]}, "Select a valid choice"),
        ({"description": "x" * 201}, "at most 200 characters"),
        ({"description": "a\0b"}, "Null characters"),
        ({"once": ""}, "out of date"),
    ],
)
def test_what_is_wrong_stands_beside_it(wrong: dict[str, Any], words: str, owner: Client, tenant: Actor) -> None:
    form = {"once": token(owner), "url": "https://example.org/hook", "events": ["*"]}
    answer = owner.post(NEW, form | wrong)
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert hooks(tenant) == []


@pytest.mark.django_db
def test_beyond_the_most_it_says_so(owner: Client, tenant: Actor) -> None:
    for _ in range(webhooks.MOST_WEBHOOKS):
        told(tenant)
    answer = owner.post(NEW, {"once": token(owner), "url": "https://example.org/hook", "events": ["*"]})
    assert "There are 20 webhooks already" in answer.content.decode()
    assert "which is the most" in owner.get(BASE).content.decode()
    assert NEW not in owner.get(BASE).content.decode()


@pytest.mark.django_db
def test_a_viewer_looks_and_changes_nothing(tenant: Actor, place: House) -> None:
    delivery = delivered_webhook(place, tenant)
    viewer = client_of(member(tenant.tenant, Role.VIEWER))
    at = f"{BASE}/{delivery.webhook_id}"
    page = viewer.get(at).content.decode()
    assert "webhook.test" in page
    for path in ("change", "rotate", "replay", "pause", "resume", "remove", "test"):
        assert f"{at}/{path}" not in page
        assert viewer.post(f"{at}/{path}").status_code == 403
    assert viewer.post(f"{at}/deliveries/{delivery.pk}/replay").status_code == 403
    assert [hook.state for hook in hooks(tenant)] == ["active"]


@pytest.mark.django_db
def test_a_viewer_is_shown_the_host_of_an_address_only(tenant: Actor) -> None:
    hook = told(tenant)
    delivery = webhooks.test(BY, hook)
    Webhook.objects.filter(tenant=tenant.tenant).update(failing_since=timezone.now())
    for role, whole in ((Role.VIEWER, False), (Role.DEVELOPER, True)):
        client = client_of(member(tenant.tenant, role))
        for path in (BASE, f"{BASE}/{hook.pk}", f"{BASE}/{hook.pk}/deliveries/{delivery.pk}"):
            page = client.get(path).content.decode()
            assert "https://example.org" in page
            assert ("theirs" in page, "/hook" in page.replace("/webhook", "")) == (whole, whole), path
        alerts = client.get("/console/t/acme/overview").content.decode()
        assert "The webhook https://example.org fails" in alerts
        assert "theirs" not in alerts


@pytest.mark.django_db
def test_it_is_changed_paused_made_active_and_deleted(tenant: Actor) -> None:
    developer = client_of(member(tenant.tenant, Role.DEVELOPER))
    hook = told(tenant)
    at = f"{BASE}/{hook.pk}"
    change = {"url": "https://example.org/other", "description": "CI", "events": ["*", "key.revoked"]}
    stale = opened(developer, f"{at}/change")
    assert developer.post(f"{at}/change", stale | change)["Location"] == at
    (found,) = hooks(tenant)
    assert (found.url, found.description, found.events) == ("https://example.org/other", "CI", ["*"])
    developer.post(f"{at}/change", stale | {"description": "of CI"})
    (found,) = hooks(tenant)
    assert (found.url, found.description, found.events) == ("https://example.org/other", "of CI", ["*"]), "none stale"
    webhooks.test(BY, hook)
    question = developer.get(f"{at}/pause").content.decode()
    assert "1 delivery waits." in question
    assert hooks(tenant)[0].state == "active"
    developer.post(f"{at}/pause")
    assert hooks(tenant)[0].state == "paused"
    assert "make it active first" in developer.post(f"{at}/test").content.decode()
    developer.post(f"{at}/resume")
    assert hooks(tenant)[0].state == "active"
    question = developer.get(f"{at}/remove").content.decode()
    assert "https://example.org/other is told of nothing any more" in question
    assert developer.post(f"{at}/remove")["Location"] == BASE
    assert hooks(tenant) == []
    assert developer.get(at).status_code == 404


@pytest.mark.django_db
def test_a_secret_is_replaced_once(owner: Client, tenant: Actor) -> None:
    hook = told(tenant)
    at = f"{BASE}/{hook.pk}/rotate"
    form = {"once": token(owner, at), "overlap": "3600"}
    assert SECRET.search(owner.post(at, form).content.decode())
    until = hooks(tenant)[0].previous_until
    assert until is not None
    assert not SECRET.search(owner.post(at, form).content.decode())
    assert hooks(tenant)[0].previous_until == until
    assert "signs as well until" in owner.get(f"{BASE}/{hook.pk}").content.decode()
    assert "Select a valid choice" in owner.post(at, {"once": "a", "overlap": "-1"}).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_test_is_delivered_and_what_was_given_up_is_sent_again(
    owner: Client, tenant: Actor, server: Receiver
) -> None:
    hook, _ = webhooks.create(BY, tenant.tenant, url=server.url, events=["*"])
    at = f"{BASE}/{hook.pk}"
    server.status, server.answer = 503, b"<b>not now</b>"
    owner.post(f"{at}/test")
    deliver()
    delivery = WebhookDelivery.objects.get(webhook__tenant=tenant.tenant)
    listed = owner.get(at).content.decode()
    assert "503" in listed
    assert "It has failed since" in listed
    one = owner.get(f"{at}/deliveries/{delivery.pk}").content.decode()
    assert "&lt;b&gt;not now&lt;/b&gt;" in one
    assert str(delivery.event_id) in one
    delivery.state = "failed"
    delivery.save()
    server.status = 200
    answer = owner.post(f"{at}/replay", {"since": "3600"}, follow=True)
    assert "1 delivery is sent again." in answer.content.decode()
    deliver()
    assert len(server.got) == 2
    assert owner.get(at, {"state": "delivered"}).context["listing"].items == [delivery]
    assert owner.get(at, {"state": "failed"}).context["listing"].items == []
    owner.post(f"{at}/deliveries/{delivery.pk}/replay")
    deliver()
    assert len(server.got) == 3


@pytest.mark.django_db
def test_pages_follow_while_a_delivery_waits(owner: Client, tenant: Actor) -> None:
    hook = told(tenant)
    delivery = webhooks.test(BY, hook)
    pages = (f"{BASE}/{hook.pk}", f"{BASE}/{hook.pk}/deliveries/{delivery.pk}")

    def followed() -> list[int | None]:
        found = [re.search(r'hx-trigger="every (\d+)s"', owner.get(page).content.decode()) for page in pages]
        return [None if each is None else int(each[1]) for each in found]

    assert followed() == [2, 2]
    delivery.next_try_at = timezone.now() + timedelta(hours=5)
    delivery.save()
    assert followed() == [30, 30], "the next try is hours away"
    webhooks.change(BY, hook, state="paused")
    assert followed() == [None, None]
    webhooks.change(BY, hook, state="active")
    delivery.state = WebhookDelivery.State.DELIVERED
    delivery.save()
    assert followed() == [None, None], "nothing changes any more"


@pytest.mark.django_db
def test_a_new_webhook_is_told_of_everything_unless_one_chooses(owner: Client, tenant: Actor) -> None:
    everything = '<input type="checkbox" name="events" value="*"'
    page = owner.get(NEW).content.decode()
    assert re.search(f"{re.escape(everything)}[^>]* checked", page)
    assert page.count(" checked") == 1
    answer = owner.post(NEW, {"once": token(owner), "url": "https://example.org/hook", "events": ["key.revoked"]})
    assert answer.status_code == 200
    assert hooks(tenant)[0].events == ["key.revoked"]
    kept = owner.get(f"{BASE}/{hooks(tenant)[0].pk}/change").content.decode()
    assert not re.search(f"{re.escape(everything)}[^>]* checked", kept)


@pytest.mark.django_db
def test_the_number_of_queries_is_the_same_for_few_and_many(owner: Client, tenant: Actor, place: House) -> None:
    hook = told(tenant)

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert owner.get(f"{BASE}/{hook.pk}").status_code == 200
        return len(captured)

    for _ in range(3):
        webhooks.emit(tenant.tenant, "key.revoked", {"id": "k"})
    few = queries()
    for _ in range(57):
        webhooks.emit(tenant.tenant, "key.revoked", {"id": "k"})
    assert queries() == few <= 12
    first = owner.get(f"{BASE}/{hook.pk}", {"state": "pending"}).context["listing"]
    assert len(first.items) == 50
    assert len(owner.get(first.more).context["listing"].items) == 10
    assert owner.get(f"{BASE}/{hook.pk}", {"after": "x"}).status_code == 400


@pytest.mark.browser
@pytest.mark.slow
async def test_add_try_and_delete_a_webhook(page: Page, gateway: Process, house: House, acme: Actor) -> None:
    await sign_in(page.context, gateway.url, member(acme.tenant, Role.DEVELOPER, "dev"))
    await page.goto(f"{gateway.url}{BASE}")
    await shoot(page, "webhooks-empty")
    await page.get_by_role("button", name="Add a webhook").click()
    await page.get_by_label("Address").fill("https://example.org/hook")
    await page.get_by_label("key.revoked").check()
    await page.get_by_role("button", name="Add it").dblclick()
    assert SECRET.fullmatch(await page.get_by_label("Secret").input_value())
    await shoot(page, "webhook-shown")
    await page.get_by_role("link", name="I have copied it").click()
    assert len(hooks(acme)) == 1
    await page.get_by_role("button", name="Send a test").click()
    await expect(page.locator("#list tbody tr")).to_have_count(1)
    await page.get_by_label("State").select_option("delivered")
    await expect(page.locator("#list")).to_contain_text("No delivery is in this state")
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("1 delivery waits.")
    await dialog.get_by_role("button", name="Delete it").click()
    await expect(page.get_by_role("status")).to_have_text("The webhook is deleted.")
    assert hooks(acme) == []
