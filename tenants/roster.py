"""All tenants with what they do now, for operators."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now, TruncMonth

from tenants.models import Account, InferenceRequest, Tenant


def rows(*, state: str | None = None, plan: str | None = None, search: str | None = None) -> QuerySet[Tenant]:
    """With ``month_tokens`` and ``month_cost`` (micro-units) of this month (UTC), what running requests hold included,
    and how many are ``running``; whatever the number of tenants, one query.

    :param plan: its name. :param search: part of the slug or of the display name.
    """
    account: Any = Account.objects.unscoped().filter(tenant=OuterRef("pk"), subject="tenant")
    account = account.filter(month=TruncMonth(Now()))
    running: Any = InferenceRequest.objects.unscoped().running().filter(tenant=OuterRef("pk"))
    found = Tenant.objects.select_related("plan").annotate(
        month_tokens=Coalesce(Subquery(account.values("month_tokens")), 0),
        month_cost=Coalesce(Subquery(account.values("month_cost")), 0),
        running=Coalesce(Subquery(running.order_by().values("tenant").annotate(n=Count("*")).values("n")), 0),
    )
    if state is not None:
        found = found.filter(state=state)
    if plan is not None:
        found = found.filter(plan__name=plan)
    return named(found, search or "")


def named(tenants: QuerySet[Tenant], search: str) -> QuerySet[Tenant]:
    """Those with ``search`` in their slug or display name; all for an empty one."""
    if not search:
        return tenants
    return tenants.filter(Q(slug__icontains=search) | Q(display_name__icontains=search))
