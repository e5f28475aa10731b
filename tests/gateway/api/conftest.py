"""Callers of the management API, and a client that speaks to it through Django's own ASGI handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from tenants.models import ApiKey, Member, OperatorKey, Plan, Tenant


@dataclass(frozen=True)
class Caller:
    """Somebody with a key; ``get``, ``post`` … answer with Django's response."""

    tenant: Tenant | None
    secret: str

    def _call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = {"Authorization": f"Bearer {self.secret}", **headers}
        kind = {} if body is None else {"data": body, "content_type": "application/json"}
        return getattr(Client(raise_request_exception=False), method)(path, headers=sent, **kind)

    def get(self, path: str, **headers: str) -> Any:
        return self._call("get", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self._call("post", path, {} if body is None else body, **headers)

    def patch(self, path: str, body: Any, **headers: str) -> Any:
        return self._call("patch", path, body, **headers)

    def put(self, path: str, body: Any, **headers: str) -> Any:
        return self._call("put", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self._call("delete", path, **headers)


Make = Callable[..., Caller]


@pytest.fixture
def tenant(db: None) -> Tenant:
    return _tenant("acme")


@pytest.fixture
def caller(tenant: Tenant) -> Make:
    """``caller()`` is an owner's program of acme; ``caller("viewer")`` holds a key of a member with that role."""

    def make(role: str | None = None, *, tenant: Tenant = tenant, scope: str = "manage", **fields: Any) -> Caller:
        member = None if role is None else _member(tenant, role)
        key, secret = ApiKey.issue(tenant, scope=scope, member=member)
        ApiKey.objects.filter(tenant=tenant, pk=key.pk).update(**fields) if fields else None
        return Caller(tenant, secret.reveal())

    return make


@pytest.fixture
def stranger(caller: Make) -> Caller:
    """An owner's program of another tenant."""
    return caller(tenant=_tenant("globex"))


@pytest.fixture
def operator(db: None) -> Caller:
    _, secret = OperatorKey.issue("tests")
    return Caller(None, secret.reveal())


def _tenant(slug: str) -> Tenant:
    plan, _ = Plan.objects.get_or_create(name="tests")
    return Tenant.objects.create(slug=slug, display_name=slug.title(), plan=plan)


def _member(tenant: Tenant, role: str) -> Member:
    user = get_user_model().objects.create_user(f"{role}-of-{tenant.slug}-{Member.objects.unscoped().count()}")
    return Member.objects.create(tenant=tenant, user=user, role=role)
