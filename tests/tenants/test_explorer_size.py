"""Looking for what hardly any request has: found by an index, not by looking through all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.db.models import Count
from django.test.utils import CaptureQueriesContext

from gateway.population import populate
from tenants import explorer
from tenants.actors import Actor
from tenants.models import Adapter, BaseModel, InferenceRequest, LedgerEntry, Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

REQUESTS = 30_000
FEW = REQUESTS // 20
"""That are looked at, at most."""


@pytest.fixture
def largest(db: None) -> Tenant:
    tenant = populate(Actor("system", "tests"), tenants=20, adapters=2000, requests=REQUESTS, days=2)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return tenant


def looked_at(queries: list[str]) -> float:
    """Requests and ledger entries that the queries' plans read."""
    read = 0.0
    for query in queries:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query)
            [[found]] = cursor.fetchall()
        [plan] = json.loads(found) if isinstance(found, str) else found
        read += _read(plan["Plan"])
    return read


def _read(node: dict[str, Any]) -> float:
    mine = node.get("Relation Name") in {"tenants_inferencerequest", "tenants_ledgerentry"}
    rows = sum(node.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter")) if mine else 0
    return rows * node["Actual Loops"] + sum(_read(child) for child in node.get("Plans", []))


def rarest() -> str:
    """Of the adapters that anybody asked for, the one with the fewest requests."""
    asked = InferenceRequest.objects.unscoped().exclude(adapter_version=None).values("adapter_version__adapter")
    [fewest] = asked.annotate(count=Count("pk")).order_by("count")[:1]
    return str(Adapter.objects.unscoped().get(pk=fewest["adapter_version__adapter"]))


def test_a_model_of_few_requests_is_found_by_its_index(largest: Tenant) -> None:
    rare = rarest()
    alone = InferenceRequest.objects.unscoped().filter(adapter_version=None).values("base_model")
    [empty] = BaseModel.objects.exclude(pk__in=alone).values_list("name", flat=True)
    for tenant in (None, largest):
        for model in (rare, empty):
            with CaptureQueriesContext(connection) as queries:
                found, _ = explorer.page_of_requests(tenant, explorer.Wanted(model=model), after=None, limit=50)
            assert tenant is not None or bool(found) is (model == rare)
            assert looked_at([query["sql"] for query in queries.captured_queries]) < FEW, (tenant, model)


def test_the_ledger_of_such_a_model_too(largest: Tenant) -> None:
    rare = rarest()
    rows = LedgerEntry.objects.unscoped()
    found = explorer.matching(rows, explorer.Wanted(model=rare), "admitted_at", request="request_id")
    with CaptureQueriesContext(connection) as queries:
        assert {str(row.adapter_version.adapter) for row in found.order_by("-request_id")[:50]} == {rare}
    assert looked_at([query["sql"] for query in queries.captured_queries[:1]]) < FEW
