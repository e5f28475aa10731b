"""A tenant's adapters as it manages them: found by name, deleted when nothing refers to them.

Deletion marks rows, because the ledger names their versions for ever; the name is free at once, for another row. The
content goes from the store when it has been unused for a day (:mod:`tenants.adapter_store`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.db import transaction
from django.utils import timezone

from tenants import audit, provisioning
from tenants.actors import Actor
from tenants.batch_inputs import Mentions
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Adapter, AdapterVersion, InferenceRequest, Tenant

IN_USE = "in_use"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SHOWN = 5
"""Referrers of one kind that a refusal names; it counts the rest."""


def find(tenant: Tenant, name: str) -> Adapter:
    """The tenant's adapter. Raises :class:`~tenants.errors.NotFound`."""
    adapter: Adapter | None = None
    if _NAME.fullmatch(name):
        adapter = rows(tenant).filter(name=name).first()
    if adapter is None:
        raise NotFound("adapter", name, "name")
    return adapter


def named(name: str, param: str | None = None) -> Adapter:
    """Anybody's adapter by its whole name, ``owner/name``: for operators.

    Raises :class:`~tenants.errors.NotFound`, :class:`~tenants.errors.Invalid` where ``param`` is what names it.
    """
    owner, _, rest = name.partition("/")
    try:
        return find(provisioning.find(owner), rest)
    except NotFound:
        if param is not None:
            text = f"There is no adapter {name[:200]!r}; it is written owner/name, such as acme/pirate."
            raise Invalid(text, param) from None
        raise NotFound("adapter", name[:200]) from None


def rows(tenant: Tenant) -> Any:
    """The tenant's adapters, with what their description needs."""
    return tenant.adapters.select_related("tenant", "base_model", "current", "canary")


def find_version(tenant: Tenant, name: str, number: int) -> AdapterVersion:
    """Raises :class:`~tenants.errors.NotFound`."""
    adapter = find(tenant, name)
    version: AdapterVersion | None = None
    if number < 1 << 31:
        version = adapter.versions.select_related("adapter__tenant", "activation").filter(number=number).first()
    if version is None:
        raise NotFound("version", f"{adapter}@{number}", "number")
    return version


def delete(actor: Actor, tenant: Tenant, name: str) -> None:
    """Delete an adapter and its versions; its name is free from then on.

    Raises :class:`~tenants.errors.NotFound`, and :class:`~tenants.errors.Conflict` (``in_use``) listing the shares,
    running requests and unfinished batches that refer to it.
    """
    adapter = find(tenant, name)
    mentions = Mentions(adapter)
    _refuse(str(adapter), _referring(adapter, mentions))  # files are read here, while nobody waits for the row
    with transaction.atomic():
        adapter = _locked(tenant, name)
        _refuse(str(adapter), _referring(adapter, mentions))
        now = timezone.now()
        numbers = list(adapter.versions.order_by("number").values_list("number", flat=True))
        adapter.versions.update(deleted_at=now)
        adapter.current = adapter.canary = None
        adapter.canary_percent = 0
        adapter.deleted_at = now
        adapter.save(update_fields=["current", "canary", "canary_percent", "deleted_at"])
        before = {"base_model": adapter.base_model.name, "versions": numbers}
        audit.record(actor, "adapter.deleted", str(adapter), tenant=tenant, before=before)


def delete_version(actor: Actor, tenant: Tenant, name: str, number: int) -> None:
    """Delete one version. Its number is not given out again.

    Raises :class:`~tenants.errors.NotFound`, and :class:`~tenants.errors.Conflict` (``in_use``) where the adapter's
    name stands for it, a canary, a running request or an unfinished batch that names it.
    """
    adapter, version = find(tenant, name), find_version(tenant, name, number)
    mentions = Mentions(adapter, number)
    _refuse(f"{adapter} v{number}", _referring_to_version(adapter, version, mentions))
    with transaction.atomic():
        adapter = _locked(tenant, name)
        version = find_version(tenant, name, number)
        _refuse(f"{adapter} v{number}", _referring_to_version(adapter, version, mentions))
        adapter.versions.filter(pk=version.pk).update(deleted_at=timezone.now())
        before = {"version": number, "digest": version.digest, "state": version.state}
        audit.record(actor, "adapter.version_deleted", str(adapter), tenant=tenant, before=before)


def referring(adapter: Adapter) -> list[str]:
    """What keeps an adapter from being deleted, at this moment: shares, running requests, unfinished batches."""
    return _referring(adapter, Mentions(adapter))


def referring_to_version(adapter: Adapter, version: AdapterVersion) -> list[str]:
    """As :func:`referring`, of one of its versions."""
    return _referring_to_version(adapter, version, Mentions(adapter, version.number))


def _referring_to_version(adapter: Adapter, version: AdapterVersion, mentions: Mentions) -> list[str]:
    found = []
    if adapter.canary_id == version.pk:
        found.append("it is the canary (end it first)")
    if adapter.current_id == version.pk:
        found.append(f"{adapter} stands for it (promote another version first)")
    return [*found, *_running(version=version), *_named(mentions)]


def _locked(tenant: Tenant, name: str) -> Adapter:
    find(tenant, name)
    adapter: Adapter | None = (
        tenant.adapters.select_for_update(of=("self",)).select_related("tenant", "base_model").filter(name=name).first()
    )
    if adapter is None:
        raise NotFound("adapter", name, "name")
    return adapter


def _refuse(what: str, referring: list[str]) -> None:
    if referring:
        raise Conflict(f"{what} is in use: {'; '.join(referring)}.", code=IN_USE)


def _referring(adapter: Adapter, mentions: Mentions) -> list[str]:
    """Another tenant's batches that name it need a share."""
    return [*_shares(adapter), *_running(adapter=adapter), *_named(mentions)]


def _named(mentions: Mentions) -> list[str]:
    return [f"the batch {batch}" for batch in mentions.batches()]


def _shares(adapter: Adapter) -> Iterator[str]:
    slugs = list(adapter.allowances.unscoped().order_by("tenant__slug").values_list("tenant__slug", flat=True))
    if slugs:
        more = f" and {len(slugs) - _SHOWN} more" if len(slugs) > _SHOWN else ""
        yield f"shared with {', '.join(slugs[:_SHOWN])}{more} (take the shares back first)"


def _running(**version: Adapter | AdapterVersion) -> Iterator[str]:
    """Of every tenant that may use it."""
    lookup = {f"adapter_version{'' if name == 'version' else '__adapter'}": value for name, value in version.items()}
    running = InferenceRequest.objects.unscoped().filter(state=InferenceRequest.State.RUNNING, **lookup).count()
    if running:
        yield f"{running} running {'request' if running == 1 else 'requests'}"
