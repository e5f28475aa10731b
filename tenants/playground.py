"""Trying models while signed in: a key of one's own for it, so that limits, bills and revocation hold as for any key.

Each person has one for each account, an operator too. It is marked as such (:attr:`ApiKey.playground_of`), whatever it
is called, and made when it is first needed. Nobody ever sees its text: it opens nothing but what a ticket does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import connection, transaction
from django.utils import timezone

from tenants import addresses, audit, key_ring
from tenants.access import MODELS, address_denied
from tenants.actors import Actor
from tenants.callers import Caller, Role
from tenants.errors import Conflict, Forbidden
from tenants.models import ApiKey, AuditEntry
from tenants.rows import hold_tenant

if TYPE_CHECKING:
    from django.contrib.auth.models import User

NAME = "playground"
MOST_MODELS = 100
OPENED = "playground.opened"
"""An operator asks at an account's expense. Written again when the last entry is :data:`OPENED_FOR` old."""

OPENED_FOR = timedelta(hours=1)

_NAMES = f"""
SELECT found.name FROM ({MODELS}) AS found
 WHERE strpos(lower(found.name), lower(%(query)s)) > 0
 ORDER BY strpos(found.name, '/') > 0, found.name LIMIT %(most)s
"""  # noqa: S608 - only the text of another statement is put in


def find(caller: Caller) -> ApiKey | None:
    """The caller's playground key: the newest that works, else the newest. ``None`` for whoever is not signed in."""
    if caller.user is None:
        return None
    rows = ApiKey.objects.filter(tenant=caller.tenant, playground_of=caller.user, member=caller.member).order_by("-pk")
    found: ApiKey | None = rows.working().first() or rows.first()
    return found


def ready(caller: Caller, *, new_key: bool = False) -> ApiKey:
    """The caller's playground key, issued now if there was none. That an operator asks for it is audited.

    :param new_key: issue another where the last one has ended. Without it that is a
        :class:`~tenants.errors.Conflict` with the code ``playground_key_ended``: who revoked it meant something by it.

    Raises :class:`~tenants.errors.Forbidden` for whoever is not signed in, :class:`~tenants.errors.Denied` where the
    key may not be used from the caller's address, and whatever :func:`tenants.key_ring.issue` raises.
    """
    if caller.user is None:
        raise Forbidden("This is for people who are signed in. With a key, issue an inference key instead.")
    with transaction.atomic():
        hold_tenant(caller.tenant.pk)  # two first uses make one key
        key = find(caller)
        if key is not None and key.state != "active" and not new_key:
            raise Conflict(
                f"Your key {NAME} ({key.public_id}) is {key.state}. A new one has to be issued to go on.",
                code="playground_key_ended",
            )
        if key is None or key.state != "active":
            wanted = key_ring.Wanted(name=_name(caller, caller.user), member=caller.member, playground_of=caller.user)
            key, _ = key_ring.issue(caller, wanted)
        if caller.member is None:
            _note(caller, key)
    if not addresses.allowed(addresses.networks(key.allowed_addresses), caller.actor.address):
        raise address_denied(caller.actor.address)
    return key


def end_operators(actor: Actor, user: User) -> int:
    """Revoke the keys with which ``user`` tried models as an operator, of all accounts: running streams stop within
    seconds. In the transaction that takes the operator's rights.

    Returns how many they were.
    """
    rows = ApiKey.objects.unscoped().select_related("tenant").filter(playground_of=user, member=None, revoked_at=None)
    found: list[ApiKey] = list(rows.order_by("tenant_id", "pk"))
    for key in found:
        key_ring.revoke(Caller("operators", key.tenant, Role.OWNER, actor), key)
    return len(found)


def models(caller: Caller, query: str = "", most: int = MOST_MODELS) -> list[str]:
    """Names of models that the caller's playground key may use, or would if there were one: base models,
    then adapters.

    :param query: only those whose name has this in it. :param most: no more than these.
    """
    key = find(caller)
    if key is not None and key.state != "active":
        key = None
    wanted: dict[str, Any] = {
        "tenant": caller.tenant.pk,
        "member": None if caller.member is None else caller.member.pk,
        "key": None if key is None else key.pk,
        "query": query,
        "most": most,
    }
    with connection.cursor() as cursor:
        cursor.execute(_NAMES, wanted)
        return [name for (name,) in cursor.fetchall()]


def _name(caller: Caller, user: User) -> str:
    """A member's key says beside it whose it is; an operator belongs to no account."""
    return NAME if caller.member is not None else f"{NAME} of operator {user.get_username()}"[:100]


def _note(caller: Caller, key: ApiKey) -> None:
    """The tenant's row is locked, so of two tickets at once one is noted."""
    entries = AuditEntry.objects.filter(tenant=caller.tenant, subject=key.public_id, action=OPENED)
    if not entries.filter(actor_name=caller.actor.name[:200], at__gt=timezone.now() - OPENED_FOR).exists():
        audit.record(caller.actor, OPENED, key.public_id, tenant=caller.tenant)
