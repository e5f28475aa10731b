"""People of one tenant and a stranger, each with a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from tenants.models import Member, Plan, Tenant

PASSWORD = "a quiet green lamp"


@dataclass(frozen=True)
class Person:
    """Somebody with an account; ``browser`` enforces CSRF as a real one meets it."""

    user: Any
    member: Member | None
    browser: Client

    def sign_in(self) -> Client:
        self.browser.force_login(self.user)
        return self.browser

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The management API from a page: session and CSRF token."""
        if "csrftoken" not in self.browser.cookies:
            self.browser.get("/accounts/sign-in")
        sent = {"X-CSRFToken": self.browser.cookies["csrftoken"].value, **headers}
        kind = {} if body is None else {"data": body, "content_type": "application/json"}
        return getattr(self.browser, method)(path, headers=sent, **kind)


@pytest.fixture(autouse=True)
def _quick_hashes(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def acme(db: None) -> Tenant:
    return make_tenant("acme")


def make_tenant(slug: str) -> Tenant:
    plan, _ = Plan.objects.get_or_create(name="tests")
    return Tenant.objects.create(slug=slug, display_name=slug.title(), plan=plan)


def make_person(name: str, *memberships: tuple[Tenant, str], **fields: Any) -> Person:
    user = get_user_model().objects.create_user(name, f"{name}@example.org", PASSWORD, **fields)
    members = [Member.objects.create(tenant=tenant, user=user, role=role) for tenant, role in memberships]
    return Person(user, members[0] if members else None, Client(enforce_csrf_checks=True))


@pytest.fixture
def person(acme: Tenant) -> Callable[..., Person]:
    """``person("ada", "owner")`` of acme."""

    def make(name: str, role: str, tenant: Tenant = acme, **fields: Any) -> Person:
        return make_person(name, (tenant, role), **fields)

    return make


@pytest.fixture
def stranger(acme: Tenant) -> Person:
    return make_person("mallory", (make_tenant("globex"), "owner"))
