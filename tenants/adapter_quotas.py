"""How many adapters a tenant keeps, how many versions and bytes, and whether there is room for one more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F, Sum
from django.db.models.functions import Greatest
from django.utils import timezone

from tenants import audit, rows
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid
from tenants.models import AdapterUpload, AdapterVersion, Plan, Tenant
from tenants.models.limits import MOST

QUOTA_EXCEEDED = "quota_exceeded"


@dataclass(frozen=True, slots=True)
class Use:
    """What counts against the quotas: adapters, versions and bytes that are there, and what open uploads will add."""

    adapters: int
    versions: int
    bytes: int


def limits(tenant: Tenant) -> dict[str, int | None]:
    """The quotas in force: the tenant's own, else its plan's; ``None`` is no limit."""
    own = {name: getattr(tenant, name) for name in Tenant.ADAPTER_QUOTAS}
    return {name: getattr(tenant.plan, name) if value is None else value for name, value in own.items()}


def used(tenant: Tenant, *, without: AdapterUpload | None = None) -> Use:
    """:param without: an open upload that is not to be counted: the one that becomes a version now."""
    names = set(tenant.adapters.values_list("name", flat=True))
    versions = AdapterVersion.objects.filter(adapter__tenant=tenant)
    kept = versions.exclude(state=AdapterVersion.State.REJECTED)
    size = kept.aggregate(size=Sum(Greatest(F("stored_bytes"), F("num_bytes"))))["size"] or 0
    uploads = [upload for upload in open_uploads(tenant) if without is None or upload.pk != without.pk]
    return Use(
        adapters=len(names | {upload.name for upload in uploads}),
        versions=versions.count() + len(uploads),
        bytes=int(size) + sum(upload.num_bytes for upload in uploads),
    )


def open_uploads(tenant: Tenant) -> list[AdapterUpload]:
    return list(tenant.adapter_uploads.filter(state=AdapterUpload.State.OPEN, expires_at__gt=timezone.now()))


def room(tenant: Tenant) -> int | None:
    """Bytes that new versions may have, open uploads not counted: one of them may be what is sent. ``None``: any."""
    most = limits(tenant)["max_adapter_bytes"]
    if most is None:
        return None
    opened = sum(upload.num_bytes for upload in open_uploads(tenant))
    return max(most - used(tenant).bytes + opened, 0)


def require_room(tenant: Tenant, name: str, num_bytes: int, *, without: AdapterUpload | None = None) -> None:
    """Raise :class:`~tenants.errors.Conflict` (``quota_exceeded``) unless one more version of ``num_bytes`` fits.

    :param tenant: as :func:`tenants.rows.hold_tenant` gave it.
    """
    have = used(tenant, without=without)
    known = tenant.adapters.filter(name=name).exists() or any(
        upload.name == name for upload in open_uploads(tenant) if without is None or upload.pk != without.pk
    )
    most = limits(tenant)
    for limit, now, more in (
        ("max_adapters", have.adapters, 0 if known else 1),
        ("max_adapter_versions", have.versions, 1),
        ("max_adapter_bytes", have.bytes, num_bytes),
    ):
        bound = most[limit]
        if bound is not None and now + more > bound:
            raise Conflict(
                f"The quota {limit} of {bound} would be exceeded: {now} are in use, this would add {more}. "
                "Delete adapters, versions or open uploads first.",
                code=QUOTA_EXCEEDED,
            )


def change(actor: Actor, holder: Tenant | Plan, quotas: Mapping[str, int | None]) -> None:
    """Set some of the quotas of a tenant or plan; operators only. What is there already stays, whatever they say.

    Raises :class:`~tenants.errors.Invalid` for a name or value that cannot be.
    """
    with transaction.atomic():
        noun = str(type(holder)._meta.verbose_name)
        locked: Any = type(holder)._base_manager.select_for_update(no_key=True, of=("self",))
        rows.hold(holder, locked, noun, str(holder))
        before = {name: getattr(holder, name) for name in Tenant.ADAPTER_QUOTAS}
        for name, value in quotas.items():
            if name not in before or (value is not None and not 0 <= value <= MOST):
                raise Invalid(f"{name} has to be one of {', '.join(before)}, 0 to {MOST} or none.", name)
            setattr(holder, name, value)
        holder.save(update_fields=[*before])
        tenant = holder if isinstance(holder, Tenant) else None
        after = {name: getattr(holder, name) for name in before}
        audit.record(actor, f"{noun}.adapter_quotas_set", str(holder), tenant=tenant, before=before, after=after)
