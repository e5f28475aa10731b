"""The order in which rows of an adapter are locked, for everybody who changes them:

1. the tenant, where a quota is looked at (:func:`tenants.rows.hold_tenant`);
2. the adapter, alone: ``select_for_update(of=("self",))`` without its versions;
3. its versions, then a version's activation.

Two rows in one ``FOR UPDATE`` are locked in whatever order the plan of the query comes upon them, so it is two
statements.
"""

from __future__ import annotations

from tenants.models import Adapter, AdapterVersion


def lock(version_id: int) -> AdapterVersion | None:
    """The version as it is once nobody else changes it or its adapter; ``None`` once either is deleted.

    In a transaction; until its end both rows are the caller's.
    """
    rows = AdapterVersion.objects.unscoped()
    adapter_id = rows.filter(pk=version_id).values_list("adapter_id", flat=True).first()
    if Adapter.objects.unscoped().select_for_update().filter(pk=adapter_id).first() is None:
        return None
    version: AdapterVersion | None = (
        rows.select_related("adapter__tenant").select_for_update(of=("self",)).filter(pk=version_id).first()
    )
    return version
