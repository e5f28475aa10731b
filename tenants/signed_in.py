"""People who signed in, as callers of the management API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenants.actors import Actor
from tenants.callers import Caller, Operator, Role
from tenants.errors import Forbidden, Invalid, NotFound, Suspended
from tenants.models import Member, Tenant

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def caller_of_user(user: User, slug: str | None, address: str | None) -> Caller:
    """A member of the tenant ``slug``; without one, of the only tenant that the user is a member of.

    Raises :class:`~tenants.errors.NotFound` for a tenant that does not exist and for one whose member the user is not,
    alike; :class:`~tenants.errors.Forbidden` for a member of no tenant and of a suspended one, and
    :class:`~tenants.errors.Invalid` where a tenant has to be named.
    """
    return caller_of_member(user, _member(user, slug), address)


def caller_of_member(user: User, member: Member, address: str | None) -> Caller:
    """:param member: the user's; select it with its ``tenant``. Raises :class:`~tenants.errors.Suspended`."""
    if member.tenant.state != Tenant.State.ACTIVE:
        raise Suspended
    actor = Actor("member", str(user), address)
    return Caller(f"member:{member.pk}", member.tenant, Role(member.role), actor, member, user=user)


def _member(user: User, slug: str | None) -> Member:
    rows = Member.objects.unscoped().select_related("tenant", "user").filter(user=user)
    if slug is not None:
        found: Member | None = rows.filter(tenant__slug=slug).first()
        if found is None:
            raise NotFound("tenant", slug, "X-Tenant")
        return found
    members: list[Member] = list(rows.order_by("tenant__slug")[:2])
    if not members:
        raise Forbidden("You are a member of no account.")
    if len(members) > 1:
        raise Invalid("You are a member of several accounts: name one in the header X-Tenant.", "X-Tenant")
    return members[0]


def operator_of_user(user: User, address: str | None) -> Operator:
    """Raises :class:`~tenants.errors.Forbidden` for anybody who is no operator."""
    if not user.is_staff:
        raise Forbidden("This is for operators of the platform.")
    return Operator(f"staff:{user.pk}", Actor("operator", str(user), address), user)
