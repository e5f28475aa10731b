"""Which base models and whose adapters a tenant may use. Operators only."""

from __future__ import annotations

from django.db import transaction

from tenants import adapter_shares, audit
from tenants.actors import Actor
from tenants.errors import Conflict
from tenants.models import Adapter, BaseModel, ModelAllowance, Tenant


def allow_model(actor: Actor, tenant: Tenant, base_model: BaseModel) -> None:
    """Alone and under its adapters. Nothing happens where it is allowed already."""
    with transaction.atomic():
        _, made = ModelAllowance.objects.get_or_create(tenant=tenant, base_model=base_model)
        if made:
            audit.record(actor, "model.allowed", base_model.name, tenant=tenant)


def forbid_model(actor: Actor, tenant: Tenant, base_model: BaseModel) -> None:
    """From the next request on; nothing happens where it is not allowed."""
    with transaction.atomic():
        gone, _ = ModelAllowance.objects.filter(tenant=tenant, base_model=base_model).delete()
        if gone:
            audit.record(actor, "model.forbidden", base_model.name, tenant=tenant)


def allow_adapter(actor: Actor, tenant: Tenant, adapter: Adapter) -> None:
    """Another tenant's adapter, under its owner's name for it, as if the owner had shared it.

    Raises :class:`~tenants.errors.Conflict` for the tenant's own.
    """
    if adapter.tenant_id == tenant.pk:
        raise Conflict(f"{adapter} is {tenant}'s own; it needs no allowance.", "adapter")
    adapter_shares.share(actor, adapter.tenant, adapter.name, tenant.pk)


def forbid_adapter(actor: Actor, tenant: Tenant, adapter: Adapter) -> None:
    """From the next request on. Raises :class:`~tenants.errors.NotFound` where it is not allowed."""
    adapter_shares.withdraw(actor, adapter.tenant, adapter.name, tenant.pk)
