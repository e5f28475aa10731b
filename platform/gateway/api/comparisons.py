"""How two versions of an adapter differ."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Schema
from pydantic import Field

from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import management_router
from tenants import adapters, version_differences

router = management_router("adapters", TenantKey())


class Change(Schema):
    """``before`` and ``after`` are null where it was not there."""

    name: str
    before: Any
    after: Any


class Adaptation(Schema):
    rank: int
    scaling: float
    dora: bool


class ModuleChange(Schema):
    """``before`` and ``after`` are null where the version does not adapt the module."""

    module: str
    before: Adaptation | None
    after: Adaptation | None


class Comparison(Schema):
    """What differs from the version ``before`` to the version ``after``."""

    object: Literal["adapter.comparison"] = "adapter.comparison"
    before: int
    after: int
    figures: list[Change]
    config: list[Change] | None = Field(
        description="Of `adapter_config.json`; null where the store does not hold that of both."
    )
    modules: list[ModuleChange]
    same_modules: int = Field(description="How many modules both adapt alike.")


@router.get(
    "/api/adapters/{name}/compare",
    response=Comparison,
    summary="What changed from one version to another: figures, PEFT config, modules",
)
def compare_versions(
    request: HttpRequest,
    name: str,
    before: Annotated[int, Query(..., alias="from", ge=1, description="A version's number")],
    after: Annotated[int, Query(..., alias="to", ge=1, description="Another's, or the same")],
) -> Comparison:
    tenant = caller(request).tenant
    older, newer = (adapters.find_version(tenant, name, number) for number in (before, after))
    found = version_differences.compare(older, newer)
    return Comparison(
        before=older.number,
        after=newer.number,
        figures=[Change.from_orm(change) for change in found.figures],
        config=None if found.config is None else [Change.from_orm(change) for change in found.config],
        modules=[ModuleChange.from_orm(change) for change in found.modules],
        same_modules=found.same_modules,
    )
