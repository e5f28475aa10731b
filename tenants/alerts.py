"""Events that nobody's action makes: noticed by looking, and told once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db import transaction
from django.db.models import Min, Q, QuerySet, Sum
from django.utils import timezone

from tenants.models import ApiKey, Denial, Member, Tenant, Webhook, WebhookEvent
from tenants.standing import standing
from tenants.webhooks import ALL, emit

logger = logging.getLogger(__name__)

EXPIRY_NOTICE = timedelta(days=7)
_FLUSHED = timedelta(minutes=1)
"""So long after an hour's end its refusals are certainly written."""
_HOUR = timedelta(hours=1)
_LOOKED_BACK = timedelta(hours=24)
"""Refusals of hours that ended while nobody looked are told later, unless so much later."""

_BUDGETS = ("budget.soft_reached", "budget.hard_reached")


def notice() -> None:
    """Tell the tenants that listen of budgets reached, refusals of past hours and keys that expire soon.

    What fails for one tenant is logged, and tried again at the next call; the others are told nevertheless.
    """
    looks: tuple[tuple[Callable[[Tenant], None], tuple[str, ...]], ...] = (
        (_budgets, _BUDGETS),
        (_denials, ("limit.denied",)),
        (_expiring, ("key.expiring",)),
    )
    for look, types in looks:
        for tenant in Tenant.objects.select_related("plan").filter(pk__in=_hooks(*types).values("tenant")):
            try:
                with transaction.atomic():
                    look(tenant)
            except Exception:
                logger.exception("tenant %s could not be told of %s", tenant.pk, ", ".join(types))


def _hooks(*types: str) -> QuerySet[Webhook]:
    found: QuerySet[Webhook] = Webhook.objects.unscoped().filter(
        state=Webhook.State.ACTIVE, events__overlap=[*types, ALL]
    )
    return found


def _budgets(tenant: Tenant) -> None:
    """Reached is a budget once what is spent and held is all of it, as it is now. A request that asks for more than is
    left is refused before: smaller ones pass.
    """
    month = f"{timezone.now():%Y-%m}"
    for about, names in _subjects(tenant):
        for limit, type in zip(("budget_soft", "budget_hard"), _BUDGETS, strict=True):
            at = about["limits"].get(limit)
            if at is None or at["used"] < at["limit"]:
                continue
            budget = {"month": month, **names}
            told = WebhookEvent.objects.filter(tenant=tenant, type=type, data__contains=budget)
            if told.filter(data__limit__gte=at["limit"]).exists():  # a limit lowered since is no other reach
                continue
            data = {**budget, "limit": at["limit"], "used": at["used"]}
            emit(tenant, type, data, once=f"{month} {' '.join(names.values())} {at['limit']}")


def _subjects(tenant: Tenant) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Whoever has a budget of their own: where they stand, and what the message calls them."""
    yield standing(tenant)[0], {"subject": "tenant", "name": tenant.slug}
    budget = Q(budget_soft__isnull=False) | Q(budget_hard__isnull=False)
    for member in Member.objects.filter(budget, tenant=tenant).select_related("user"):
        yield standing(tenant, member)[-1], {"subject": "member", "name": member.user.get_username()}
    for key in ApiKey.objects.filter(budget, tenant=tenant, successor=None):
        yield standing(tenant, None, key)[-1], {"subject": "key", "name": key.public_id}


def _denials(tenant: Tenant) -> None:
    end = (timezone.now() - _FLUSHED).replace(minute=0, second=0, microsecond=0)
    listened = _hooks("limit.denied").filter(tenant=tenant).aggregate(since=Min("created_at"))["since"] or end
    for hour, rows in groupby(_refused(tenant, max(end - _LOOKED_BACK, listened), end), itemgetter("hour")):
        denials = [
            {
                "code": row["code"],
                "limit": row["limit"],
                "subject": row["subject"],
                "key": row["key__public_id"],
                "requests": row["requests"],
            }
            for row in rows
        ]
        total = sum(row["requests"] for row in denials)
        data = {"from": hour, "to": hour + _HOUR, "requests": total, "denials": denials[:100]}
        emit(tenant, "limit.denied", data, once=hour.isoformat())


def _refused(tenant: Tenant, since: datetime, end: datetime) -> QuerySet[Denial, dict[str, Any]]:
    """By hour, key and limit, the most first; of hours that end after ``since`` and were not told yet."""
    denials = Denial.objects.filter(tenant=tenant, hour__gt=since - _HOUR, hour__lt=end).exclude(limit="")
    hours = denials.values_list("hour", flat=True).distinct()
    told = WebhookEvent.objects.filter(tenant=tenant, type="limit.denied", once__in=[h.isoformat() for h in hours])
    found: QuerySet[Denial, dict[str, Any]] = (
        denials.exclude(hour__in=[datetime.fromisoformat(once) for once in told.values_list("once", flat=True)])
        .values("hour", "code", "limit", "subject", "key__public_id")
        .annotate(requests=Sum("count"))
        .order_by("hour", "-requests")
    )
    return found


def _expiring(tenant: Tenant) -> None:
    keys = ApiKey.objects.working().filter(tenant=tenant, expires_at__lt=timezone.now() + EXPIRY_NOTICE)
    for key in keys.filter(successor=None):  # one that was rotated is meant to
        data = {"id": key.public_id, "name": key.name, "expires_at": key.expires_at}
        emit(tenant, "key.expiring", data, once=f"{key.public_id} {key.expires_at.isoformat()}")
