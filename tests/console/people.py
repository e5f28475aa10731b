"""Signed-in people: Django's test client for pages, and the same session in a real browser."""

from __future__ import annotations

from importlib import import_module
from uuid import uuid4

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.auth.models import User
from django.test import Client
from playwright.async_api import BrowserContext

from tenants.callers import Role
from tenants.models import Member, Tenant

BACKEND = "django.contrib.auth.backends.ModelBackend"


def operator(name: str = "root") -> User:
    return get_user_model().objects.create_user(name, f"{name}@example.org", is_staff=True)


def member(tenant: Tenant, role: Role = Role.OWNER, name: str | None = None) -> User:
    name = name or f"{role}-{uuid4().hex[:6]}"
    user = get_user_model().objects.create_user(name, f"{name}@example.org")
    Member.objects.create(tenant=tenant, user=user, role=role)
    return user


def client_of(user: User) -> Client:
    """Django's test client, signed in. It checks CSRF tokens only where asked to."""
    client = Client(headers={"Host": "localhost"})
    client.force_login(user)
    return client


def session_of(user: User) -> str:
    """The key of a new session of the user's, as the sign-in page would make it: the cookie's value."""
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = BACKEND
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    assert session.session_key is not None
    return session.session_key


async def sign_in(context: BrowserContext, url: str, user: User) -> None:
    """Give the browser a session of the user's."""
    await context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session_of(user), "url": url}])
