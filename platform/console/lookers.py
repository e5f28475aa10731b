"""Who looks at a live page, and whether they still may: found out for all of them at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, load_backend
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from console.pages import pages
from console.place import Place, TenantPlace, operators_place
from tenants.errors import Suspended
from tenants.models import Member, Tenant
from tenants.signed_in import caller_of_member

PAGE = "overview"
"""Whoever may see it may look."""


@dataclass(frozen=True, slots=True)
class Look:
    """A browser's session at a place.

    :param slug: of the tenant; ``None``: the platform. :param address: the client's.
    """

    session: str = field(repr=False)
    slug: str | None
    address: str | None


def places(looks: Collection[Look]) -> dict[Look, Place | None]:
    """Where each is, by the rules of pages; ``None``: whoever has no business there. Four queries, however many."""
    people = _people({look.session for look in looks})
    slugs = {look.slug for look in looks if look.slug is not None}
    tenants = {tenant.slug: tenant for tenant in Tenant.objects.filter(slug__in=slugs)}
    rows: Any = Member.objects.unscoped().select_related("tenant", "user")
    rows = rows.filter(user__in={user.pk for user in people.values()}, tenant__in=tenants.values())
    members = {(member.user_id, member.tenant.slug): member for member in rows}
    found: dict[Look, Place | None] = {}
    for look in looks:
        user = people.get(look.session)
        place = None if user is None else _place(look, user, tenants, members)
        found[look] = place if place is not None and pages()[PAGE].open_to(place) else None
    return found


def _place(look: Look, user: User, tenants: dict[str, Tenant], members: dict[tuple[int, str], Member]) -> Place | None:
    """As :func:`console.place.place_of`, of what was read already."""
    if user.is_staff:
        if look.slug is not None and look.slug not in tenants:
            return None
        return operators_place(user, look.address, None if look.slug is None else tenants[look.slug])
    member = None if look.slug is None else members.get((user.pk, look.slug))
    if member is None:
        return None
    try:
        return TenantPlace(user, None, caller_of_member(user, member, look.address))
    except Suspended:
        return None


def _people(sessions: Collection[str]) -> dict[str, User]:
    """Whose sessions these are, by the sessions' keys: as :func:`django.contrib.auth.get_user` finds it out for one."""
    rows = Session.objects.filter(pk__in=sessions, expire_date__gt=timezone.now())
    said = {row.pk: row.get_decoded() for row in rows}
    signed_in = {key: data for key, data in said.items() if SESSION_KEY in data}
    users = User.objects.in_bulk([int(data[SESSION_KEY]) for data in signed_in.values()])
    found = {}
    for key, data in signed_in.items():
        user = users.get(int(data[SESSION_KEY]))
        if user is not None and _holds(user, data):
            found[key] = user
    return found


def _holds(user: User, session: dict[str, Any]) -> bool:
    """Whether the account may still sign in that way, and its password is the one of then."""
    path = session.get(BACKEND_SESSION_KEY, "")
    backend: Any = load_backend(path) if path in settings.AUTHENTICATION_BACKENDS else None
    if backend is None or not backend.user_can_authenticate(user):
        return False
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(session.get(HASH_SESSION_KEY, ""), each) for each in hashes)
