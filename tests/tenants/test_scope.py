"""A query that names no tenant raises at every door to the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.db.models import Count, F, Q, Sum
from django.shortcuts import get_object_or_404

from tenants.errors import UnscopedQuery
from tenants.models import Adapter, AdapterAllowance, AdapterVersion, ApiKey, LedgerEntry, ModelAllowance, Tenant
from tenants.scope import TenantOwned, TenantQuerySet, unscoped_queries

DOORS: dict[str, Callable[[Any], Any]] = {
    "iterate": list,
    "len": len,
    "bool": bool,
    "get": lambda q: q.get(),
    "first": lambda q: q.first(),
    "last": lambda q: q.last(),
    "earliest": lambda q: q.earliest("created_at"),
    "slice": lambda q: q[:1].count(),
    "index": lambda q: q[0],
    "count": lambda q: q.count(),
    "exists": lambda q: q.exists(),
    "contains": lambda q: q.contains(Adapter(pk=1)),
    "aggregate": lambda q: q.aggregate(n=Count("id")),
    "update": lambda q: q.update(name="x"),
    "delete": lambda q: q.delete(),
    "raw_delete": lambda q: q._raw_delete("default"),
    "iterator": lambda q: list(q.iterator()),
    "in_bulk": lambda q: q.in_bulk(),
    "values": lambda q: list(q.values("id")),
    "values_list": lambda q: list(q.values_list("id", flat=True)),
    "dates": lambda q: list(q.dates("created_at", "day")),
    "explain": lambda q: q.explain(),
    "get_or_create": lambda q: q.get_or_create(name="x"),
    "update_or_create": lambda q: q.update_or_create(name="x"),
    "bulk_update": lambda q: q.bulk_update([Adapter(pk=1, name="x")], ["name"]),
    "subquery": lambda q: list(Tenant.objects.filter(adapters__in=q)),
    "union": lambda q: list(q.union(q)),
    "annotate": lambda q: list(q.annotate(n=Count("versions"))),
    "raw": lambda q: list(q.raw("SELECT * FROM tenants_adapter")),
    "get_object_or_404": lambda q: get_object_or_404(q, pk=1),
}


@pytest.fixture
def adapter(world: Any) -> Adapter:
    made: Adapter = world.adapter(world.actor("acme").tenant, "pirate")
    return made


@pytest.mark.parametrize("door", DOORS)
def test_every_door_is_guarded(door: str, adapter: Adapter) -> None:
    for query in (Adapter.objects.all(), Adapter.objects.filter(name="pirate"), Adapter.objects.order_by("id")):
        with pytest.raises(UnscopedQuery, match="tenant"):
            DOORS[door](query)


async def test_asynchronous_doors_are_guarded(adapter: Adapter) -> None:
    with pytest.raises(UnscopedQuery):
        await Adapter.objects.aget()
    with pytest.raises(UnscopedQuery):
        async for _ in Adapter.objects.all():
            pass
    with pytest.raises(UnscopedQuery):
        async for _ in Adapter.objects.aiterator():
            pass


@pytest.mark.parametrize(
    "condition",
    [
        Q(),
        Q(pk=1),
        Q(tenant=F("tenant")),
        Q(tenant__isnull=False),
        Q(tenant__in=[]) | Q(name="pirate"),
        Q(tenant__state="active"),
        Q(tenant__display_name="Acme"),
        Q(tenant__slug__startswith="a"),
        Q(base_model=1),
        Q(allowances__tenant__slug="acme"),
    ],
    ids=str,
)
def test_conditions_that_bind_nothing(condition: Q, adapter: Adapter) -> None:
    with pytest.raises(UnscopedQuery):
        list(Adapter.objects.filter(condition))


def test_or_and_not_bind_nothing(adapter: Adapter) -> None:
    for condition in (
        Q(tenant=adapter.tenant) | Q(name="pirate"),
        ~Q(tenant=adapter.tenant),
        Q(tenant=adapter.tenant) ^ Q(name="x"),
    ):
        with pytest.raises(UnscopedQuery):
            list(Adapter.objects.filter(condition))
    with pytest.raises(UnscopedQuery):
        list(Adapter.objects.exclude(tenant=adapter.tenant))
    with pytest.raises(UnscopedQuery):
        list(Adapter.objects.filter(tenant=adapter.tenant) | Adapter.objects.filter(name="pirate"))
    with pytest.raises(UnscopedQuery):
        list(Adapter.objects.filter(tenant=adapter.tenant).union(Adapter.objects.all()))


def test_scoped_queries_pass(adapter: Adapter) -> None:
    tenant = adapter.tenant
    for query in (
        Adapter.objects.filter(tenant=tenant),
        Adapter.objects.filter(tenant_id=tenant.pk, name="pirate"),
        Adapter.objects.filter(tenant__slug="acme"),
        Adapter.objects.filter(Q(tenant=tenant) & (Q(name="pirate") | Q(name="x"))),
        Adapter.objects.filter(name="pirate").filter(tenant=tenant).exclude(name="x"),
        tenant.adapters.all(),
        tenant.adapters.filter(name="pirate"),
        Adapter.objects.filter(tenant=tenant).union(tenant.adapters.all()),
        Adapter.objects.unscoped().filter(name="pirate"),
    ):
        assert [found.pk for found in query] == [adapter.pk]
    assert list(Adapter.objects.none()) == []
    assert tenant.adapters.count() == 1
    assert tenant.adapters.get(name="pirate") == adapter
    assert Tenant.objects.filter(adapters__in=tenant.adapters.all()).get() == tenant
    with unscoped_queries():
        assert Adapter.objects.count() == 1


def test_a_tenant_one_join_away(adapter: Adapter) -> None:
    for query in (
        AdapterVersion.objects.filter(adapter__tenant=adapter.tenant),
        AdapterVersion.objects.filter(adapter__tenant__slug="acme"),
        adapter.versions.all(),
    ):
        assert query.get() == adapter.current
    for query in (
        AdapterVersion.objects.filter(adapter=adapter),
        AdapterVersion.objects.filter(adapter__name="pirate"),
    ):
        with pytest.raises(UnscopedQuery):
            query.get()


def test_the_column_of_another_table_does_not_bind(adapter: Adapter) -> None:
    """Who may use it is not whose it is: the path to the tenant has to be the model's own."""
    with pytest.raises(UnscopedQuery):
        list(AdapterAllowance.objects.filter(adapter__tenant=adapter.tenant))
    with pytest.raises(UnscopedQuery):
        list(LedgerEntry.objects.filter(key__tenant=adapter.tenant))


def test_instances_go_on_working(adapter: Adapter) -> None:
    adapter.refresh_from_db()
    adapter.save()
    assert adapter.current is not None
    assert adapter.current.adapter == adapter
    adapter.full_clean()
    ModelAllowance.objects.get(tenant=adapter.tenant).delete()
    assert adapter.versions.aggregate(total=Sum("number"))["total"] == 1


def test_every_model_with_a_tenant_is_guarded() -> None:
    for model in apps.get_app_config("tenants").get_models():
        if model is not Tenant and any(
            field.name == "tenant" and field.is_relation for field in model._meta.get_fields()
        ):
            assert issubclass(model, TenantOwned), model
        if issubclass(model, TenantOwned):
            assert isinstance(model._default_manager.all(), TenantQuerySet)
    assert issubclass(ApiKey, TenantOwned)


def _owned() -> list[Any]:
    return [model for model in apps.get_models() if issubclass(model, TenantOwned)]


@pytest.mark.parametrize("model", _owned(), ids=lambda model: model.__name__)
def test_no_model_of_a_tenant_answers_a_query_that_names_none(model: Any, db: None) -> None:
    for door in (list, lambda q: q.count(), lambda q: q.exists(), lambda q: q.first(), lambda q: q.delete()):
        for query in (model.objects.all(), model.objects.filter(pk=None) | model.objects.exclude(pk=None)):
            with pytest.raises(UnscopedQuery):
                door(query)
    assert model.objects.unscoped().count() == 0


def test_whatever_points_at_a_tenant_belongs_to_one() -> None:
    """In every app; also what points at a tenant's member or key."""
    exceptions = {
        "WsTicket",  # found by a secret of its own
        "PublicPrefix",  # the operators', whatever adapter it is for: no tenant's page or call reads it
    }
    for model in apps.get_models():
        if model is Tenant or issubclass(model, TenantOwned) or model.__name__ in exceptions:
            continue
        targets = [field.related_model for field in model._meta.get_fields() if field.many_to_one or field.one_to_one]
        pointed = [target for target in targets if target is Tenant or issubclass(target or object, TenantOwned)]
        assert pointed == [], model
