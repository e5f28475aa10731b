"""People's accounts, whatever tenants they belong to: switched off, nobody signs in with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.db import transaction

from tenants import audit, membership, playground
from tenants.actors import Actor
from tenants.errors import NotFound
from tenants.models import Member
from tenants.operators import keep_an_operator
from tenants.sessions import end_sessions

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def find_account(username: str, param: str | None = "username") -> User:
    """Raises :class:`~tenants.errors.NotFound`."""
    user = None if "\0" in username else get_user_model().objects.filter(username=username).first()
    if user is None:
        raise NotFound("account", username, param)
    return user


def switch_off(actor: Actor, user: User) -> int:
    """The person signs in no more, sessions end at once, and the keys of all memberships are revoked, an operator's
    playground keys too: running streams stop within seconds. Memberships stay. Without effect on one that is off.

    Returns how many keys were revoked. Raises :class:`~tenants.errors.Conflict` for the last operator who can sign in
    and, with the code ``last_owner``, for a tenant's last owner who can.
    """
    with transaction.atomic():
        keep_an_operator(user)
        members: list[Member] = list(Member.objects.unscoped().filter(user=user).order_by("tenant_id"))
        keys = sum(membership.end_access(actor, member) for member in members) + playground.end_operators(actor, user)
        if get_user_model().objects.filter(pk=user.pk, is_active=True).update(is_active=False):
            end_sessions(user)
            audit.record(actor, "account.switched_off", user.username, tenant=None)
            for member in members:
                audit.record(actor, "member.switched_off", user.username, tenant=member.tenant)
    user.refresh_from_db()
    return keys


def switch_on(actor: Actor, user: User) -> None:
    """The person may sign in again. Keys that were revoked stay so, and sessions ended. Without effect on an account
    that is on.
    """
    with transaction.atomic():
        if get_user_model().objects.filter(pk=user.pk, is_active=False).update(is_active=True):
            end_sessions(user)  # of a sign-in that was under way when the account was switched off
            audit.record(actor, "account.switched_on", user.username, tenant=None)
            for member in Member.objects.unscoped().filter(user=user).select_related("tenant").order_by("tenant_id"):
                audit.record(actor, "member.switched_on", user.username, tenant=member.tenant)
    user.refresh_from_db()
