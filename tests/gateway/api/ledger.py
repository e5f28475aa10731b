"""Requests that ended, as rows: for what reads the ledger."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from uuid6 import uuid7

from tenants.models import Adapter, AdapterVersion, ApiKey, BaseModel, InferenceRequest, LedgerEntry, Price, Tenant


def base_model(name: str = "tiny") -> BaseModel:
    found, _ = BaseModel.objects.get_or_create(
        name=name, defaults={"fingerprint": "f" * 64, "directory": f"/models/{name}", "context_length": 100}
    )
    return found


def adapter(tenant: Tenant, name: str) -> AdapterVersion:
    owned = Adapter.objects.create(tenant=tenant, name=name, base_model=base_model())
    return AdapterVersion.objects.create(adapter=owned, number=1, state="ready", digest="d" * 64)


def request(key: ApiKey, at: datetime, **values: Any) -> InferenceRequest:
    """One that runs, unless it is :func:`ended`."""
    common: dict[str, Any] = {"base_model": base_model(), "prompt_tokens": 10, "max_tokens": 20, "held_cost": 30}
    common |= {"id": uuid7()}
    return InferenceRequest.objects.create(
        tenant=key.tenant,
        key=key,
        member=key.member,
        admitted_at=at,
        lease_expires_at=at + timedelta(seconds=30),
        **common | values,
    )


def ended(key: ApiKey, at: datetime, *, after: timedelta = timedelta(seconds=2), **values: Any) -> InferenceRequest:
    """:param values: of the ledger entry: tokens, ``cost``, ``outcome`` …; ``version`` of an adapter."""
    version = values.pop("version", None)
    price: Price | None = values.pop("price", None)
    row = request(key, at, adapter_version=version, price=price, state="settled", settled_at=at + after)
    used: dict[str, Any] = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5, "cost": 7}
    LedgerEntry.objects.create(
        request=row,
        tenant=key.tenant,
        key=key,
        member=key.member,
        base_model=row.base_model,
        adapter_version=version,
        price=price,
        admitted_at=at,
        created_at=at + after,
        **{"outcome": "completed", "finish_reason": "stop", **used, **values},
    )
    return row
