"""Whether models can be had: all that a tenant may know of workers, whose load is other tenants' business."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from fleet.looks import Look
from tenants.models import ModelAllowance, Tenant


def served(looks: Iterable[Look]) -> dict[int, bool | None]:
    """By ids of base models, whether some worker serves it. ``None``: not known, as of no worker it is known that it
    serves, and of one at least it is not known that it does not. A model that is left out has no worker: nobody does.
    """
    found: dict[int, bool | None] = {}
    for look in looks:
        model, serves = look.worker.base_model_id, look.serves
        if found.get(model, False) is not True:
            found[model] = serves if serves is not False else found.get(model, False)
    return found


def available(
    tenants: Collection[Tenant], served: Mapping[int, bool | None]
) -> dict[UUID, list[tuple[str, bool | None]]]:
    """By the tenants' ids, the models that each may use, by name, and what :func:`served` says of them."""
    found: dict[UUID, list[tuple[str, bool | None]]] = {tenant.pk: [] for tenant in tenants}
    rows = ModelAllowance.objects.unscoped().filter(tenant__in=found, base_model__state="active")
    names = rows.order_by("base_model__name").values_list("tenant_id", "base_model__name", "base_model_id")
    for tenant, name, model in names:
        found[tenant].append((name, served.get(model, False)))
    return found
