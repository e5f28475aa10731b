"""For every page with something in its path: how to make such a thing, and the path's arguments that name it.

``test_every_page.py`` tries each page with them, a stranger's included. A page without an entry fails there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from django.contrib.auth import get_user_model
from django.utils import timezone

from fleet.models import PublicPrefix, Worker
from tenants import adapter_shares, batches, files, invitations, payloads, releases, uploads, webhooks
from tenants.actors import Actor as Doer
from tenants.models import (
    Activation,
    Adapter,
    AdapterUpload,
    AdapterVersion,
    Batch,
    File,
    Member,
    OperatorKey,
    WebhookAttempt,
    WebhookDelivery,
)
from tests.console.request_rows import ended_request, stored_request
from tests.gateway.house import Actor, House

Sample = Callable[[House, Actor], tuple[Any, ...]]


def _key(house: House, actor: Actor) -> tuple[str]:
    return (actor.key.public_id,)


def _worker(house: House, actor: Actor) -> tuple[str]:
    Worker.objects.get_or_create(name="w1", defaults={"url": "http://127.0.0.1:9", "base_model": house.base})
    return ("w1",)


def _prefix(house: House, actor: Actor) -> tuple[str]:
    made = {"base_model": house.base, "source": {"prompt": "a b"}, "tokens": [1] * 20, "fingerprint": house.fingerprint}
    PublicPrefix.objects.get_or_create(name="support", defaults=made)
    return ("support",)


def _operator_key(house: House, actor: Actor) -> tuple[str]:
    key, _ = OperatorKey.issue(f"key-{uuid4().hex[:6]}")
    return (key.public_id,)


SAMPLES: dict[str, Sample] = {
    "worker": _worker,
    "worker-change": _worker,
    "worker-remove": _worker,
    "worker-state": lambda house, actor: (*_worker(house, actor), "drain"),
    "model-state": lambda house, actor: (house.base.name, "retire"),
    "plan": lambda house, actor: (house.plan.name,),
    "plan-delete": lambda house, actor: (house.plan.name,),
    "prefix": _prefix,
    "prefix-withdraw": _prefix,
    "operator-key-revoke": _operator_key,
    "key": _key,
    "key-change": _key,
    "key-revoke": _key,
    "key-rotate": _key,
}
"""By the page's name. The sample belongs to the actor's tenant."""

NOT_AN_OBJECT: set[str] = set()
"""Pages whose path names nothing that a tenant owns, so that another tenant's is no matter."""

OWNERS: set[str] = {"key", "key-change", "key-revoke", "key-rotate"}
"""Pages of things that only owners find, unless they are one's own: the samples are nobody's."""

DOWNLOADS: set[str] = {"batch-failures", "batch-input", "batch-output"}
"""Pages that send a file: nothing to look at."""

# Adapters and batches ------------------------------------------------------------------------------------------------


def two_versions(house: House, owner: Actor) -> Adapter:
    """An adapter whose second version answers, so that there is one to go back to."""
    by = Doer("command", "samples")
    name = f"a{uuid4().hex[:8]}"
    house.adapter(owner, name)
    adapter: Adapter = Adapter.objects.get(tenant=owner.tenant, name=name)
    AdapterVersion.objects.create(adapter=adapter, number=2, state="ready", digest=uuid4().hex * 2)
    releases.promote(by, owner.tenant, name, 2)
    third = AdapterVersion.objects.create(adapter=adapter, number=3, state="checked", digest=uuid4().hex * 2)
    Activation.objects.create(tenant=owner.tenant, version=third)
    adapter.refresh_from_db()
    return adapter


def finished_batch(house: House, owner: Actor) -> Batch:
    """A batch with an input, an output and an error file."""
    named = [File(tenant=owner.tenant, filename="in.jsonl", purpose="batch", num_bytes=3) for _ in range(3)]
    for file in named:
        file.created_at, file.expires_at = timezone.now(), timezone.now() + files.KEPT
        path = files.content_path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")
        file.save()
    made: Batch = Batch.objects.create(
        tenant=owner.tenant,
        key=owner.key,
        endpoint="/v1/chat/completions",
        input_file_id=named[0].pk,
        output_file_id=named[1].pk,
        error_file_id=named[2].pk,
        status="completed",
        total=3,
        completed=2,
        failed=1,
        created_at=timezone.now(),
        expires_at=timezone.now() + batches.WINDOW,
        completed_at=timezone.now(),
    )
    return made


def _of_adapter(*more: Any) -> Sample:
    return lambda house, owner: (two_versions(house, owner).name, *more)


def _of_batch(house: House, owner: Actor) -> tuple[Any, ...]:
    return (finished_batch(house, owner).pk,)


def _of_files(house: House, owner: Actor) -> tuple[Any, ...]:
    """As :func:`_of_batch`; operators may download them too."""
    payloads.turn_on(Doer("command", "samples"), owner.tenant, days=7, operators_may_read=True)
    return _of_batch(house, owner)


def _of_share(house: House, owner: Actor) -> tuple[Any, ...]:
    adapter = two_versions(house, owner)
    receiver = house.actor(f"r{uuid4().hex[:8]}").tenant
    adapter_shares.share(Doer("command", "samples"), owner.tenant, adapter.name, receiver.pk)
    return adapter.name, receiver.pk


def _of_upload(house: House, owner: Actor) -> tuple[Any, ...]:
    made = AdapterUpload.objects.create(
        tenant=owner.tenant,
        name="pirate",
        base_model=house.base,
        files=[],
        num_bytes=5,
        expires_at=timezone.now() + uploads.LIFETIME,
    )
    return (made.pk,)


SAMPLES |= {
    "request": lambda house, owner: (ended_request(house, owner).pk,),
    "request-payload": lambda house, owner: (stored_request(house, owner).pk,),
    "adapter": _of_adapter(),
    "adapter-automatic": _of_adapter(),
    "adapter-canary": _of_adapter(),
    "adapter-compare": _of_adapter(),
    "adapter-delete": _of_adapter(),
    "adapter-promote": _of_adapter(1),
    "adapter-releases": _of_adapter(),
    "adapter-rollback": _of_adapter(),
    "adapter-share": _of_adapter(),
    "adapter-shares": _of_adapter(),
    "adapter-share-withdraw": _of_share,
    "adapter-version": _of_adapter(2),
    "adapter-version-delete": _of_adapter(1),
    "adapter-version-try": _of_adapter(3),
    "batch": _of_batch,
    "batch-cancel": _of_batch,
    "batch-failures": _of_files,
    "batch-input": _of_files,
    "batch-output": _of_files,
    "upload-cancel": _of_upload,
}


# Webhooks ------------------------------------------------------------------------------------------------------------


def delivered_webhook(house: House, owner: Actor) -> WebhookDelivery:
    """A webhook with a message that was answered at the second try."""
    by = Doer("command", "samples")
    webhook, _ = webhooks.create(by, owner.tenant, url="https://example.org/hook", events=["*"], description="CI")
    delivery: WebhookDelivery = webhooks.test(by, webhook)
    delivery.state, delivery.tries = WebhookDelivery.State.DELIVERED, 2
    delivery.save()
    for status, error in ((500, "it answered with 500"), (200, "")):
        WebhookAttempt.objects.create(
            tenant=owner.tenant,
            delivery=delivery,
            at=timezone.now(),
            milliseconds=120,
            status=status,
            error=error,
            answer="thanks",
        )
    return delivery


def _webhook(house: House, owner: Actor) -> tuple[str]:
    return (str(delivered_webhook(house, owner).webhook_id),)


def _delivery(house: House, owner: Actor) -> tuple[str, str]:
    made = delivered_webhook(house, owner)
    return str(made.webhook_id), str(made.pk)


SAMPLES |= {
    "webhook": _webhook,
    **{f"webhook-{name}": _webhook for name in ("change", "rotate", "replay", "pause", "resume", "remove", "test")},
    "webhook-delivery": _delivery,
    "webhook-delivery-replay": _delivery,
}


# Tenants and members -------------------------------------------------------------------------------------------------


def _slug(house: House, owner: Actor) -> tuple[str]:
    return (owner.tenant.slug,)


def _received(house: House, owner: Actor) -> tuple[str, str, str]:
    """Another tenant's adapter that the owner's tenant may use."""
    giver = house.actor(f"g{uuid4().hex[:8]}")
    house.adapter(giver, "pirate")
    adapter_shares.share(Doer("command", "samples"), giver.tenant, "pirate", owner.tenant.pk)
    return owner.tenant.slug, giver.tenant.slug, "pirate"


def _member(house: House, owner: Actor) -> tuple[str]:
    user = get_user_model().objects.create_user(f"m{uuid4().hex[:8]}")
    return (str(Member.objects.create(tenant=owner.tenant, user=user, role="developer").public_id),)


def _invitation(house: House, owner: Actor) -> tuple[str]:
    address = f"{uuid4().hex[:8]}@example.org"
    made, _ = invitations.invite(Doer("command", "samples"), owner.tenant, address, Member.Role.VIEWER)
    return (str(made.pk),)


SAMPLES |= {
    **{f"account-{name}": _slug for name in ("change", "limits", "suspend", "resume", "delete", "models", "adapters")},
    "account-model-withdraw": lambda house, owner: (owner.tenant.slug, house.base.name),
    "account-adapter-withdraw": _received,
    "member": _member,
    "member-change": _member,
    "member-remove": _member,
    "invitation-revoke": _invitation,
}
