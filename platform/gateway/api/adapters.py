from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist
from django.http import HttpRequest
from ninja import Path, Schema
from pydantic import ConfigDict, Field

from gateway.api.callers import TenantKey, caller
from gateway.api.mutations import Body, management_router
from gateway.api.pages import Page, Wanted, page
from tenants import adapter_quotas, adapter_shares, adapters
from tenants.callers import Role
from tenants.models import Adapter as AdapterRow
from tenants.models import AdapterAllowance, AdapterVersion, Tenant

router = management_router("adapters", TenantKey())

Number = Annotated[int, Path(..., ge=1)]


class Adapter(Schema):
    """An adapter of the account. Requests call it by ``model``, one version of it by ``<model>@<number>``."""

    name: str
    object: Literal["adapter"] = "adapter"
    model: str
    base_model: str
    version: int | None = Field(description="The version that answers; null while none is ready.")
    canary: int | None = Field(description="The version that answers `canary_percent` of the requests.")
    canary_percent: int
    created_at: datetime


class Problem(Schema):
    message: str
    field: str | None = Field(description="The file, key or tensor at fault.")
    advice: str | None = Field(description="What to do about it.")


class Report(Schema):
    message: str
    problems: list[Problem]


class Module(Schema):
    module: str
    rank: int
    scaling: float
    dora: bool


class Trial(Schema):
    """How the version did at a worker, before it might answer."""

    state: str
    report: dict[str, Any]


class Version(Schema):
    """One content of an adapter. Once ready it never changes."""

    number: int
    object: Literal["adapter.version"] = "adapter.version"
    state: str = Field(description="`pending` until it was checked and tried, then `ready` or `rejected`.")
    digest: str = Field(description="Hex sha256 of the content.")
    bytes: int = Field(description="Of its files.")
    dtype: str | None
    max_rank: int | None
    modules: list[Module]
    report: Report | None = Field(description="Why it was rejected: everything that was found wrong.")
    trial: Trial | None
    created_at: datetime
    checked_at: datetime | None


class ShareCreation(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"account_id": "0192f0c1-2a7b-7c3d-8e4f-5a6b7c8d9e0f"}]})

    account_id: Annotated[
        UUID, Field(strict=False, description="Id of the receiving account, which it finds at `/api/account-id`.")
    ]


class Share(Schema):
    id: str = Field(description="Id of the account that may use the adapter.")
    object: Literal["adapter.share"] = "adapter.share"
    tenant: str = Field(description="Its short name.")
    created_at: datetime


class SharedAdapter(Schema):
    """Somebody else's adapter that this account may use."""

    model: str
    object: Literal["adapter.shared"] = "adapter.shared"
    base_model: str
    usable: bool = Field(description="Whether it is ready and the account may use its base model.")
    created_at: datetime


class Quota(Schema):
    used: int
    limit: int | None = Field(description="null: no limit.")


class Quotas(Schema):
    adapters: Quota
    versions: Quota
    bytes: Quota


class AccountId(Schema):
    id: str = Field(description="Give it to whoever wants to share an adapter with this account.")


def _adapter(row: AdapterRow) -> Adapter:
    return Adapter(
        name=row.name,
        model=str(row),
        base_model=row.base_model.name,
        version=None if row.current is None else row.current.number,
        canary=None if row.canary is None else row.canary.number,
        canary_percent=row.canary_percent,
        created_at=row.created_at,
    )


def _version(row: AdapterVersion) -> Version:
    try:
        trial = Trial(state=row.activation.state, report=row.activation.report)
    except ObjectDoesNotExist:
        trial = None
    return Version(
        number=row.number,
        state=row.state,
        digest=row.digest,
        bytes=row.stored_bytes,
        dtype=row.spec.get("dtype"),
        max_rank=row.spec.get("max_rank"),
        modules=[Module(**target) for target in row.spec.get("targets", ())],
        report=_report(row),
        trial=trial,
        created_at=row.created_at,
        checked_at=row.checked_at,
    )


def _report(row: AdapterVersion) -> Report | None:
    if "message" not in row.report:
        return None
    return Report(message=row.report["message"], problems=[Problem.model_validate(found) for found in row.problems])


def _share(row: AdapterAllowance) -> Share:
    return Share(id=str(row.tenant_id), tenant=row.tenant.slug, created_at=row.created_at)


@router.get("/api/adapters", response=Page[Adapter], summary="The account's adapters, by name")
def list_adapters(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    return page(adapters.rows(caller(request).tenant), window, _adapter, name="name", order="name")


@router.get("/api/adapters/{name}", response=Adapter, summary="One adapter")
def get_adapter(request: HttpRequest, name: str) -> Adapter:
    return _adapter(adapters.find(caller(request).tenant, name))


@router.delete(
    "/api/adapters/{name}",
    response={204: None},
    auth=TenantKey(Role.DEVELOPER),
    summary="Delete an adapter and its versions",
    description="409 `in_use` lists the shares, running requests and unfinished batches that refer to it.",
)
def delete_adapter(request: HttpRequest, name: str) -> tuple[int, None]:
    who = caller(request)
    adapters.delete(who.actor, who.tenant, name)
    return 204, None


@router.get("/api/adapters/{name}/versions", response=Page[Version], summary="Its versions, newest first")
def list_versions(request: HttpRequest, name: str, window: Wanted) -> dict[str, Any]:
    rows = adapters.find(caller(request).tenant, name).versions.select_related("activation")
    return page(rows, window, _version, name="number", order="-number")


@router.get("/api/adapters/{name}/versions/{number}", response=Version, summary="One version, with its report")
def get_version(request: HttpRequest, name: str, number: Number) -> Version:
    return _version(adapters.find_version(caller(request).tenant, name, number))


@router.delete(
    "/api/adapters/{name}/versions/{number}",
    response={204: None},
    auth=TenantKey(Role.DEVELOPER),
    summary="Delete a version that nothing stands for",
)
def delete_version(request: HttpRequest, name: str, number: Number) -> tuple[int, None]:
    who = caller(request)
    adapters.delete_version(who.actor, who.tenant, name, number)
    return 204, None


@router.get("/api/adapters/{name}/shares", response=Page[Share], summary="Who else may use the adapter")
def list_shares(request: HttpRequest, name: str, window: Wanted) -> dict[str, Any]:
    rows = adapter_shares.shares(adapters.find(caller(request).tenant, name)).select_related("tenant")
    return page(rows, window, _share, name="tenant_id", order="tenant_id")


@router.post(
    "/api/adapters/{name}/shares",
    response={201: Share},
    auth=TenantKey(Role.OWNER),
    summary="Let another account use the adapter",
    description="It also needs the base model. Nothing else of yours becomes visible to it.",
)
def create_share(request: HttpRequest, name: str, body: ShareCreation) -> tuple[int, Share]:
    who = caller(request)
    return 201, _share(adapter_shares.share(who.actor, who.tenant, name, body.account_id))


@router.delete(
    "/api/adapters/{name}/shares/{receiver}",
    response={204: None},
    auth=TenantKey(Role.OWNER),
    summary="Take a share back, from the next request on",
)
def delete_share(request: HttpRequest, name: str, receiver: UUID) -> tuple[int, None]:
    who = caller(request)
    adapter_shares.withdraw(who.actor, who.tenant, name, receiver)
    return 204, None


@router.get("/api/shared-adapters", response=Page[SharedAdapter], summary="Adapters that others share with the account")
def list_shared(request: HttpRequest, window: Wanted) -> dict[str, Any]:
    tenant = caller(request).tenant
    return page(adapter_shares.received(tenant), window, _shared(tenant), name="model", order="model")


def _shared(tenant: Tenant) -> Any:
    allowed = set(tenant.model_allowances.values_list("base_model_id", flat=True))

    def shown(row: AdapterAllowance) -> SharedAdapter:
        adapter = row.adapter
        return SharedAdapter(
            model=row.model,  # type: ignore[attr-defined]
            base_model=adapter.base_model.name,
            usable=adapter.current is not None and adapter.base_model_id in allowed,
            created_at=row.created_at,
        )

    return shown


@router.get("/api/adapter-quotas", response=Quotas, summary="How many adapters, versions and bytes, of how many")
def get_quotas(request: HttpRequest) -> Quotas:
    tenant = caller(request).tenant
    used, limits = adapter_quotas.used(tenant), adapter_quotas.limits(tenant)
    return Quotas(
        adapters=Quota(used=used.adapters, limit=limits["max_adapters"]),
        versions=Quota(used=used.versions, limit=limits["max_adapter_versions"]),
        bytes=Quota(used=used.bytes, limit=limits["max_adapter_bytes"]),
    )


@router.get("/api/account-id", response=AccountId, summary="The account's id, for those who share adapters with it")
def get_account_id(request: HttpRequest) -> AccountId:
    return AccountId(id=str(caller(request).tenant.pk))
