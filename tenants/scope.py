"""Tenant scope by default: a query on a tenant-owned model that names no tenant raises instead of leaking.

A query is scoped when the conjunction at the top of its WHERE compares the model's tenant column with one value:
``filter(tenant=…)``, ``filter(tenant__slug=…)``, or a related manager (``tenant.api_keys``, ``adapter.versions``).
Anything else raises :class:`~tenants.errors.UnscopedQuery` when it would reach the database, unless
``.unscoped()`` was said. Forward access (``version.adapter``) and ``save()`` go through Django's base manager and are
not affected: they start from an instance that somebody already obtained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models.expressions import Col
from django.db.models.lookups import Exact
from django.db.models.sql import Query
from django.db.models.sql.where import AND, WhereNode

from tenants.errors import UnscopedQuery

_unscoped: ContextVar[bool] = ContextVar("tenants_unscoped", default=False)


@contextmanager
def unscoped_queries() -> Iterator[None]:
    """Allow unscoped queries inside the block: the operators' admin, and uniqueness checks across tenants."""
    token = _unscoped.set(True)
    try:
        yield
    finally:
        _unscoped.reset(token)


def _column_path(query: Query, column: Col) -> str:
    """``adapter__tenant`` for a column reached from the query's own table through the join ``adapter``."""
    path = [column.target.name]
    alias = column.alias
    while alias != query.base_table:
        join: Any = query.alias_map[alias]
        path.insert(0, join.join_field.name)
        alias = join.parent_alias
    return "__".join(path)


def _bound_columns(query: Query, node: WhereNode) -> Iterator[tuple[str, object]]:
    """Paths of the columns that the WHERE compares with one value, and the value; only what always holds."""
    if node.negated or (node.connector != AND and len(node.children) > 1):
        return
    for child in node.children:
        if isinstance(child, WhereNode):
            yield from _bound_columns(query, child)
        elif (
            isinstance(child, Exact)
            and isinstance(child.lhs, Col)
            and not hasattr(child.rhs, "resolve_expression")
            and child.rhs is not None
        ):
            yield _column_path(query, child.lhs), child.rhs


class TenantQuerySet(models.QuerySet[Any]):
    """A queryset that checks its own scope at every door to the database."""

    _said_unscoped = False

    def unscoped(self) -> Self:
        """Across all tenants, on purpose: operators' tools, never a tenant's request."""
        clone: Self = self._chain()  # type: ignore[attr-defined]
        clone._said_unscoped = True
        return clone

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._said_unscoped = self._said_unscoped
        return clone

    def _is_scoped(self) -> bool:
        path: str = self.model.tenant_path
        keys = {path, f"{path}__id", f"{path}__slug"}
        parent = path.partition("__")[0] if "__" in path else None
        instance = self._hints.get("instance")  # type: ignore[attr-defined]
        for bound, value in _bound_columns(self.query, self.query.where):
            if bound in keys:
                return True
            # adapter.versions: the related manager of an instance that was itself obtained within a scope
            if parent is not None and bound == parent and instance is not None and value == instance.pk:
                return True
        return False

    def _require_scope(self) -> None:
        if self._said_unscoped or _unscoped.get() or self.query.is_empty():
            return
        parts: Collection[Query] = self.query.combined_queries
        if parts:
            # a union carries its parts as bare queries; each part has to bind the tenant for itself
            scoped = all(self._with_query(part)._is_scoped() for part in parts)
        else:
            scoped = self._is_scoped()
        if not scoped:
            raise UnscopedQuery(
                f"{self.model.__name__}: this query names no tenant; "
                f"filter on {self.model.tenant_path}, or say .unscoped()"
            )

    def _with_query(self, query: Query) -> Self:
        return type(self)(self.model, query=query, using=self._db, hints=self._hints)  # type: ignore[attr-defined]

    # Every way into the database; get(), first(), in_bulk(), bool(), len() and slices come through _fetch_all.

    def _fetch_all(self) -> None:
        if self._result_cache is None:
            self._require_scope()
        super()._fetch_all()

    def iterator(self, chunk_size: int | None = None) -> Iterator[Any]:
        self._require_scope()
        return super().iterator(chunk_size)

    def aiterator(self, chunk_size: int = 2000) -> Any:
        self._require_scope()
        return super().aiterator(chunk_size)

    def count(self) -> int:
        self._require_scope()
        return super().count()

    def exists(self) -> bool:
        self._require_scope()
        return super().exists()

    def contains(self, obj: models.Model) -> bool:
        self._require_scope()
        return super().contains(obj)

    def aggregate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self._require_scope()
        return super().aggregate(*args, **kwargs)

    def explain(self, *, format: str | None = None, **options: Any) -> str:
        self._require_scope()
        return super().explain(format=format, **options)

    def update(self, **kwargs: Any) -> int:
        self._require_scope()
        return super().update(**kwargs)

    def delete(self) -> tuple[int, dict[str, int]]:
        self._require_scope()
        return super().delete()

    def _raw_delete(self, using: str | None) -> int:
        self._require_scope()
        return super()._raw_delete(using)

    def resolve_expression(self, *args: Any, **kwargs: Any) -> Any:
        self._require_scope()  # as a subquery of another model's query
        return super().resolve_expression(*args, **kwargs)

    def raw(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._said_unscoped or _unscoped.get()):
            raise UnscopedQuery(
                f"{self.model.__name__}: raw SQL cannot be checked for its tenant; say .unscoped().raw(…)"
            )
        return super().raw(*args, **kwargs)


TenantScoped = models.Manager.from_queryset(TenantQuerySet, "TenantScoped")


class TenantOwned(models.Model):
    """Abstract base of every model whose rows belong to one tenant.

    ``tenant_path`` is the lookup that leads from the model to the tenant.
    """

    tenant_path: ClassVar[str] = "tenant"

    objects: ClassVar[Any] = TenantScoped()

    class Meta:
        abstract = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.tenant_path.count("__") > 1:
            raise ImproperlyConfigured(f"{cls.__name__}: the tenant is at most one join away")

    # Uniqueness holds across all tenants; the check tells only yes or no.

    def validate_unique(self, exclude: Collection[str] | None = None) -> None:
        with unscoped_queries():
            super().validate_unique(exclude=exclude)

    def validate_constraints(self, exclude: Collection[str] | None = None) -> None:
        with unscoped_queries():
            super().validate_constraints(exclude=exclude)
