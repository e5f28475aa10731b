"""A tenant lets others use one of its adapters, under its own name for it. Nothing else of it becomes visible.

A share is addressed to the receiving tenant's id, which nobody can guess and which the receiver hands out; so a share
cannot be used to find out who else is here.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Concat

from tenants import adapters, audit
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Adapter, AdapterAllowance, Tenant

MOST = 1000
"""Shares of one adapter."""


def share(actor: Actor, owner: Tenant, name: str, receiver: UUID) -> AdapterAllowance:
    """Let another tenant use the adapter. Nothing happens where it may already.

    Raises :class:`~tenants.errors.NotFound` for the adapter or the tenant, :class:`~tenants.errors.Invalid` for the
    owner itself, :class:`~tenants.errors.Conflict` beyond :data:`MOST`.
    """
    if receiver == owner.pk:
        raise Invalid("The adapter is your own; it needs no share.", "account_id")
    with transaction.atomic():
        adapter = _locked(owner, name)
        tenant = Tenant.objects.filter(pk=receiver).first()
        if tenant is None:
            raise NotFound("account", str(receiver), "account_id")
        known: AdapterAllowance | None = shares(adapter).filter(tenant=tenant).first()
        if known is not None:
            return known
        if shares(adapter).count() >= MOST:
            raise Conflict(f"{adapter} is shared with {MOST} tenants, which is the most.", code="too_many_shares")
        made: AdapterAllowance = AdapterAllowance.objects.create(tenant=tenant, adapter=adapter)
        _record(actor, "adapter.shared", adapter, tenant)
        return made


def withdraw(actor: Actor, owner: Tenant, name: str, receiver: UUID) -> None:
    """Take a share back, from the next request on. Raises :class:`~tenants.errors.NotFound`."""
    with transaction.atomic():
        adapter = _locked(owner, name)
        found: AdapterAllowance | None = shares(adapter).select_related("tenant").filter(tenant=receiver).first()
        if found is None:
            raise NotFound("share", str(receiver))
        found.delete()
        _record(actor, "adapter.share_withdrawn", adapter, found.tenant)


def shares(adapter: Adapter) -> Any:
    """The adapter's shares, for its owner."""
    return AdapterAllowance.objects.unscoped().filter(adapter=adapter)


def received(tenant: Tenant) -> Any:
    """What others share with the tenant, with its name as ``model``."""
    rows = AdapterAllowance.objects.filter(tenant=tenant, adapter__deleted_at=None)
    rows = rows.annotate(model=Concat("adapter__tenant__slug", Value("/"), "adapter__name"))
    return rows.select_related("adapter__tenant", "adapter__base_model", "adapter__current")


def _locked(owner: Tenant, name: str) -> Adapter:
    adapters.find(owner, name)
    found = owner.adapters.select_for_update(of=("self",)).select_related("tenant", "base_model").filter(name=name)
    adapter: Adapter | None = found.first()
    if adapter is None:
        raise NotFound("adapter", name, "name")
    return adapter


def _record(actor: Actor, action: str, adapter: Adapter, receiver: Tenant) -> None:
    """In both tenants' logs; who of the owner's people did it, and from where, is the owner's business."""
    after = {"tenant": receiver.slug}
    audit.record(actor, action, str(adapter), tenant=adapter.tenant, after=after)
    ours = actor.kind in {"operator", "command"}
    shown = actor if ours else Actor("system", f"the owner, {adapter.tenant}")
    audit.record(shown, action, str(adapter), tenant=receiver, after=after)
