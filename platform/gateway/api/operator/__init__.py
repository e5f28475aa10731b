"""``/api/operator/…``: everything for those who run the platform, across tenants."""

from __future__ import annotations

from gateway.api.operator import (
    accounts,
    allowlists,
    audit,
    base_models,
    batches,
    explorer,
    files,
    keys,
    overview,
    plans,
    prices,
    public_prefixes,
    reconciliations,
    residency,
    tenants,
    workers,
)
from gateway.api.operator.acting import acting

routers = (
    tenants.router,
    accounts.router,
    allowlists.router,
    plans.router,
    prices.router,
    base_models.router,
    workers.router,
    audit.router,
    reconciliations.router,
    explorer.router,
    batches.router,
    files.router,
    keys.router,
    overview.router,
    residency.router,
    public_prefixes.router,
)

__all__ = ["acting", "routers"]
