"""Base models with how much hangs on each."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from fleet.models import Worker
from tenants.models import Adapter, BaseModel, ModelAllowance


def rows() -> QuerySet[Any]:
    """All base models. ``tenants``: how many may use it; ``worker_count``: workers registered for it;
    ``adapter_count``: adapters made for it.
    """
    # Each by itself: joined, a thousand tenants and ten thousand adapters would be ten million rows.
    return BaseModel.objects.annotate(
        tenants=_counted(ModelAllowance.objects.unscoped()),
        worker_count=_counted(Worker.objects.all()),
        adapter_count=_counted(Adapter.objects.unscoped()),
    )


def _counted(of: QuerySet[Any]) -> Coalesce:
    own = of.filter(base_model=OuterRef("pk")).order_by().values("base_model")
    return Coalesce(Subquery(own.annotate(number=Count("pk")).values("number")), 0)
