"""Operators do with commands what tenants do over REST."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tenants.models import AuditEntry, Tenant, Webhook, WebhookDelivery

NEW = ("add_webhook", "acme", "--url", "https://example.org/hook")
NOBODYS = "01890000-0000-7000-8000-000000000000"

pytestmark = pytest.mark.usefixtures("acme")


def run(*arguments: str) -> dict[str, Any]:
    return json.loads(said(*arguments, "--json"))


def said(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_webhook_from_its_beginning_to_its_end(acme: Tenant) -> None:
    made = run(*NEW, "--events", "key.revoked, adapter.ready")
    assert made["secret"].startswith("whsec_")
    assert made["events"] == ["adapter.ready", "key.revoked"]
    hook = ("--webhook", made["id"])
    assert run("change_webhook", "acme", *hook, "--state", "paused")["state"] == "paused"
    assert run("change_webhook", "acme", *hook, "--state", "active", "--events", "*")["events"] == ["*"]
    rotated = run("rotate_webhook_secret", "acme", *hook, "--overlap-hours", "0")
    assert rotated["secret"] != made["secret"]
    assert rotated["previous_until"] is None
    delivery = run("test_webhook", "acme", *hook)["delivery"]
    WebhookDelivery.objects.filter(webhook__tenant=acme).update(state="failed")
    assert run("replay_webhook", "acme", *hook) == {"webhook": made["id"], "deliveries": 1}
    assert run("replay_webhook", "acme", *hook, "--delivery", delivery)["deliveries"] == 1
    [sent] = run("webhooks", "acme", *hook)["deliveries"]
    assert (sent["id"], sent["type"], sent["state"]) == (delivery, "webhook.test", "pending")
    assert "not tried yet" in said("webhooks", "acme", *hook)
    [listed] = run("webhooks", "acme")["webhooks"]
    assert (listed["id"], listed["state"]) == (made["id"], "active")
    assert made["id"] in said("webhooks", "acme")
    assert run("remove_webhook", "acme", *hook)["removed"] == made["id"]
    assert not Webhook.objects.filter(tenant=acme).exists()
    actions = [entry["action"] for entry in run("audit", "acme")["entries"]]
    assert actions == [
        f"webhook.{did}"
        for did in ("removed", "replayed", "replayed", "tested", "secret_rotated", "changed", "changed", "created")
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add_webhook", "nobody", "--url", "https://example.org/"), "There is no tenant"),
        (("add_webhook", "acme", "--url", "http://example.org/"), "https://"),
        (("add_webhook", "acme", "--url", "https://10.0.0.1/"), "no public address"),
        ((*NEW, "--events", "key.exploded"), "key.exploded"),
        (("change_webhook", "acme", "--webhook", NOBODYS), "Say what to change"),
        (("change_webhook", "acme", "--webhook", NOBODYS, "--state", "paused"), "There is no webhook"),
        (("remove_webhook", "acme", "--webhook", "x"), "There is no webhook"),
        (("replay_webhook", "acme", "--webhook", NOBODYS, "--hours", "0"), "--hours"),
        (("rotate_webhook_secret", "acme", "--webhook", NOBODYS, "--overlap-hours", "721"), "--overlap-hours"),
        (("webhooks", "acme", "--most", "0"), "--most"),
        (("audit", "--most", "0"), "--most"),
        (("audit", "--tenant", "acme", "--platform"), "exclude"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        call_command(*arguments)


def test_a_webhook_of_another_tenant_is_not_found(acme: Tenant) -> None:
    made = run(*NEW)
    Tenant.objects.create(slug="globex", display_name="Globex", plan=acme.plan)
    with pytest.raises(CommandError, match="There is no webhook"):
        call_command("remove_webhook", "globex", "--webhook", made["id"])


def test_the_log_is_listed_by_subject_and_action(acme: Tenant) -> None:
    first, second = run(*NEW)["id"], run(*NEW)["id"]
    assert [e["subject"] for e in run("audit")["entries"]] == [second, first]
    assert [e["subject"] for e in run("audit", "--subject", first)["entries"]] == [first]
    assert run("audit", "--action", "key.revoked")["entries"] == []
    assert run("audit", "--platform")["entries"] == []
    assert "webhook.created" in said("audit", "--most", "1")
    assert AuditEntry.objects.filter(tenant=acme).first().actor_kind == "command"
