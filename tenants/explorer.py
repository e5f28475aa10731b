"""What went through the platform, looked for: requests and refusals, a tenant's or everybody's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args
from uuid import UUID

from django.db.models import Case, F, QuerySet, When

from tenants import provisioning, request_ids
from tenants.errors import Invalid, NotFound
from tenants.keyset import following
from tenants.models import AdapterVersion, ApiKey, BaseModel, Denial, InferenceRequest, LedgerEntry, Member, Tenant

State = Literal["running", "completed", "cancelled", "failed", "abandoned"]
STATES: tuple[State, ...] = get_args(State)

JOINED = ("tenant", "key", "base_model", "adapter_version__adapter__tenant")

_APART = timedelta(hours=1)
"""More than a request's id, a UUIDv7 by the gateway's clock, is from its admission by the database's."""

_DENIAL = re.compile(r"(\d{10})-([0-9A-Za-z]+)-([a-z0-9_]*)-([a-z0-9_]*)-([a-z]*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is looked for; ``None``: any.

    :param tenant: its short name. :param key: a key's public id. :param member: a member's public id.
    :param model: as requests name it: a base model, which leaves its adapters out, or ``tenant/adapter``.
    :param since: then or later. :param until: before then. Of a request's admission, of a refusal's hour.
    :param state: of requests. :param code: of refusals. :param limit: the one that refused.
    """

    tenant: str | None = None
    key: str | None = None
    member: UUID | None = None
    model: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    state: State | None = None
    code: str | None = None
    limit: str | None = None


def page_of_requests(
    tenant: Tenant | None, wanted: Wanted, *, after: str | None, limit: int
) -> tuple[list[InferenceRequest], bool]:
    """Up to ``limit`` requests after the one of the id ``after``, newest first, and whether there are more.

    :param tenant: whose; ``None``: everybody's. Raises :class:`~tenants.errors.Invalid` for an ``after`` that is
        not among them.
    """
    owner = tenant if tenant is not None or wanted.tenant is None else provisioning.find(wanted.tenant)
    everything = _requests(owner)
    # A tenant's are found by the index of its admissions, in which the id tells apart those of one moment; a key's and
    # everybody's by their ids.
    by_id = owner is None or wanted.key is not None
    rows = _in_state(matching(everything, wanted, "admitted_at", request="pk" if by_id else None), wanted.state)
    if after is not None:
        last = _one(everything, after)
        if last is None:
            raise Invalid("after: there is nothing of this id in the list.", "after")
        if by_id:
            rows = rows.filter(pk__lt=last.pk)
        else:
            rows = rows.filter(admitted_at__lte=last.admitted_at).exclude(admitted_at=last.admitted_at, pk__gte=last.pk)
    order = ["-pk"] if by_id else ["-admitted_at", "-id"]
    # First which, then all about them: what belongs to a request is joined to those of the page only, however wrong the
    # planner is about how many there are. Not in one statement: it would join the subquery after all the rest.
    found = list(everything.filter(pk__in=_ids(rows.order_by(*order)[: limit + 1])).order_by(*order))
    return found[:limit], len(found) > limit


def request_of(tenant: Tenant | None, request_id: str) -> InferenceRequest:
    """Raises :class:`~tenants.errors.NotFound`, for another tenant's as for nobody's."""
    found = _one(_requests(tenant), request_id)
    if found is None:
        raise NotFound("request", request_id)
    return found


def page_of_denials(
    tenant: Tenant | None, wanted: Wanted, *, after: str | None, limit: int, by_hour: bool = True
) -> tuple[list[Denial], bool]:
    """As :func:`page_of_requests`, of reasons of refusals.

    :param after: as :func:`denial_id` says it, or a row's number. :param by_hour: times are of the hour, and the
        newest hour comes first; else they are of the last refusal, and the reason that came up last comes first.
    """
    every = Denial.objects.unscoped() if tenant is None else Denial.objects.filter(tenant=tenant)
    rows = matching(every.select_related("tenant", "key"), wanted, "hour" if by_hour else "last_at")
    if wanted.code is not None:
        rows = rows.filter(code=wanted.code)
    if wanted.limit is not None:
        rows = rows.filter(limit=wanted.limit)
    if not by_hour:
        return following(rows, name="pk", order="-pk", after=after, limit=limit)
    if after is not None:
        last = _denial(tenant, after)
        if last is None:
            raise Invalid("after: there is nothing of this id in the list.", "after")
        rows = rows.filter(hour__lte=last.hour).exclude(hour=last.hour, pk__gte=last.pk)
    found = list(rows.order_by("-hour", "-pk")[: limit + 1])
    return found[:limit], len(found) > limit


def denial_id(row: Denial) -> str:
    """What makes a row the only one of its tenant."""
    return f"{row.hour.astimezone(UTC):%Y%m%d%H}-{row.key.public_id}-{row.code}-{row.limit}-{row.subject}"


def matching(rows: QuerySet[Any], wanted: Wanted, at: str, *, request: str | None = None) -> QuerySet[Any]:
    """``rows`` of requests, the ledger or refusals with what this leaves of them, but for the state.

    :param at: the field that times are of. :param request: the field that is the request's id, in whose order the rows
        are listed: it says where in its index to begin, ``at`` then what is meant.
    """
    if wanted.tenant is not None:
        rows = rows.filter(tenant=provisioning.find(wanted.tenant))
    if wanted.since is not None:
        rows = rows.filter(**{f"{at}__gte": wanted.since})
    if wanted.until is not None:
        rows = rows.filter(**{f"{at}__lt": wanted.until})
    if request is not None and wanted.since is not None:
        rows = rows.filter(**{f"{request}__gte": request_ids.least_at(wanted.since, -_APART)})
    if request is not None and wanted.until is not None:
        rows = rows.filter(**{f"{request}__lt": request_ids.least_at(wanted.until, _APART)})
    # Names become ids first: the database then knows how many rows to expect, and none are looked through for nobody.
    if wanted.key is not None:
        rows = rows.filter(key__in=_ids(ApiKey.objects.unscoped().filter(public_id=wanted.key)))
    if wanted.member is not None:
        rows = rows.filter(member__in=_ids(Member.objects.unscoped().filter(public_id=wanted.member)))
    if wanted.model is None:
        return rows
    return rows.filter(last_model=wanted.model) if rows.model is Denial else _of_model(rows, wanted.model)


def _of_model(rows: QuerySet[Any], model: str) -> QuerySet[Any]:
    # What the ledger copies from its requests, only the requests have an index of.
    of = "request__" if rows.model is LedgerEntry else ""
    owner, slash, name = model.partition("/")
    if slash:
        versions = AdapterVersion.with_deleted.unscoped().filter(adapter__tenant__slug=owner, adapter__name=name)
        return rows.filter(**{f"{of}adapter_version__in": _ids(versions)})
    base = _ids(BaseModel.objects.filter(name=owner))
    # The same once more, as the statistics ``request_base_alone`` have it: the planner then knows of how few.
    alone = Case(When(**{f"{of}adapter_version": None}, then=F(f"{of}base_model")))
    rows = rows.filter(**{f"{of}base_model__in": base, f"{of}adapter_version": None})
    found: QuerySet[Any] = rows.alias(alone=alone).filter(alone__in=base)
    return found


def _ids(rows: QuerySet[Any]) -> list[Any]:
    return list(rows.values_list("pk", flat=True))


def _in_state(rows: QuerySet[Any], state: State | None) -> QuerySet[Any]:
    if state is None:
        return rows
    if state == "running":
        return rows.filter(state=InferenceRequest.State.RUNNING)
    rows = rows.filter(ledger_entry__outcome=state)
    # Then an index has them by tenant.
    return rows if state == "completed" else rows.filter(ledger_entry__tenant=F("tenant"))


def _requests(tenant: Tenant | None) -> QuerySet[InferenceRequest]:
    rows = InferenceRequest.objects.unscoped() if tenant is None else InferenceRequest.objects.filter(tenant=tenant)
    found: QuerySet[InferenceRequest] = rows.select_related(*JOINED, "member", "price", "ledger_entry")
    return found


def _one(rows: QuerySet[InferenceRequest], request_id: str) -> InferenceRequest | None:
    try:
        return rows.filter(pk=UUID(request_id)).first()
    except ValueError:
        return None


def _denial(tenant: Tenant | None, text: str) -> Denial | None:
    parts = _DENIAL.fullmatch(text)
    if parts is None:
        return None
    try:
        hour = datetime.strptime(parts[1], "%Y%m%d%H").replace(tzinfo=UTC)
    except ValueError:
        return None
    rows = Denial.objects.unscoped() if tenant is None else Denial.objects.filter(tenant=tenant)
    reason = {"code": parts[3], "limit": parts[4], "subject": parts[5]}
    found: Denial | None = rows.filter(hour=hour, key__public_id=parts[2], **reason).first()
    return found
