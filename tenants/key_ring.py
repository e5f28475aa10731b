"""A tenant's keys: issue, change, rotate, revoke. The API, the commands and the console all come here.

An owner reaches every key of the tenant. Everybody else reaches only their own, and acts through them as themselves: a
developer's key of scope ``manage`` has the developer's role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from tenants import addresses, audit, restrictions, webhooks
from tenants.callers import Caller, Role
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.keys import Secret
from tenants.limits import check_budgets, check_values, set_limits
from tenants.models import ApiKey, Limits, Member, Tenant
from tenants.rows import hold_tenant

if TYPE_CHECKING:
    from django.contrib.auth.models import User

OVERLAP = timedelta(hours=24)
MOST_OVERLAP = timedelta(days=30)
MOST_LIFETIME = timedelta(days=36_500)
MOST_KEYS = 1000
"""Keys of a tenant that are neither revoked nor expired."""

_PUBLIC_ID = re.compile(r"[0-9A-Za-z]{1,32}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A key to be issued.

    :param member: whose key; ``None``: the tenant's own. :param expires_at: ``None``: never.
    :param models: names of the only models it may use; ``None``: all that the tenant (or member) may.
    :param networks: where alone it may be used from, ``203.0.113.0/24``; ``None``: from anywhere.
    :param limits: by the names of :attr:`Limits.NAMES`. :param playground_of: :mod:`tenants.playground` alone says so.
    """

    name: str = ""
    scope: str = ApiKey.Scope.INFERENCE
    member: Member | None = None
    expires_at: datetime | None = None
    models: Sequence[str] | None = None
    networks: Sequence[str] | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)
    playground_of: User | None = None


def reachable(caller: Caller) -> QuerySet[ApiKey]:
    """The keys that the caller may see, and with the role of a developer change."""
    found: QuerySet[ApiKey] = ApiKey.objects.filter(tenant=caller.tenant).select_related(
        "tenant", "member__user", "predecessor", "successor"
    )
    return found if caller.role == Role.OWNER else found.filter(member=caller.member, member__isnull=False)


def find(caller: Caller, public_id: str) -> ApiKey:
    """Raises :class:`~tenants.errors.NotFound`, for what the caller may not see as well."""
    key = reachable(caller).filter(public_id=public_id).first() if _PUBLIC_ID.fullmatch(public_id) else None
    if key is None:
        raise NotFound("key", public_id)
    return key


def issue(caller: Caller, wanted: Wanted) -> tuple[ApiKey, Secret]:
    """A new key and its text, which exists nowhere else from now on.

    A developer issues keys for itself, an owner for any member and for the tenant as a whole. Raises
    :class:`~tenants.errors.Forbidden`, :class:`~tenants.errors.Invalid`, and :class:`~tenants.errors.Conflict` with the
    code ``too_many_keys``.
    """
    caller.require(Role.DEVELOPER)
    _check_expiry(wanted.expires_at)
    check_values(ApiKey(tenant=caller.tenant), wanted.limits)
    with transaction.atomic():
        _make_room(caller.tenant)
        member = _holder(caller, wanted.member)
        models, adapters = (None, None) if wanted.models is None else restrictions.ids_of(caller.tenant, wanted.models)
        networks = None if wanted.networks is None else addresses.normalised(wanted.networks)
        key, secret = ApiKey.issue(
            caller.tenant,
            name=wanted.name,
            scope=wanted.scope,
            member=member,
            expires_at=wanted.expires_at,
            playground_of=wanted.playground_of,
            issued_by=_issuer(caller),
            only_models=models,
            only_adapters=adapters,
            allowed_addresses=networks,
            **{name: wanted.limits.get(name) for name in Limits.NAMES},
        )
        check_budgets(key, wanted.limits)
        audit.record(caller.actor, "key.issued", key.public_id, tenant=caller.tenant, after=_snapshot(key))
    return key, secret


def change(caller: Caller, key: ApiKey, **changes: Any) -> None:
    """Set some of ``name``, ``expires_at``, ``models``, ``networks`` and ``limits``, as in :class:`Wanted`.

    Limits and restrictions become those of all keys of its line. What narrows reaches running requests within seconds.
    Raises :class:`~tenants.errors.Invalid`, and :class:`~tenants.errors.Conflict` for a key that has ended.
    """
    caller.require(Role.DEVELOPER)
    with transaction.atomic():
        _lock(key)
        _require_active(key)
        if "limits" in changes:
            set_limits(caller.actor, key, changes.pop("limits") or {})
        if "models" in changes:
            restrictions.restrict(caller.actor, key, changes.pop("models"))
        before = _snapshot(key)
        if "networks" in changes:
            networks = changes.pop("networks")
            changes["allowed_addresses"] = None if networks is None else addresses.normalised(networks)
        if "expires_at" in changes:
            _check_expiry(changes["expires_at"])
        for name, value in changes.items():
            setattr(key, name, value)
        after = _snapshot(key)
        if before == after:
            return
        key.full_clean(exclude=["tenant", "member"])
        key.save(update_fields=list(changes))
        audit.record(caller.actor, "key.changed", key.public_id, tenant=key.tenant, before=before, after=after)


def rotate(
    caller: Caller, key: ApiKey, *, overlap: timedelta = OVERLAP, expires_at: datetime | None = None
) -> tuple[ApiKey, Secret]:
    """A successor of the key with everything that holds for it. Both share its counters, so that each limit holds for
    both together.

    :param overlap: how long the predecessor still works; 0: it is revoked at once.
    :param expires_at: the successor's end; ``None``: it lives as long from now as its predecessor was given.

    Raises :class:`~tenants.errors.Invalid`, and :class:`~tenants.errors.Conflict` for a playground key, whose text
    nobody ever has, and for a key that has ended or has a successor already (code ``rotated_already``): that one is to
    be rotated.
    """
    caller.require(Role.DEVELOPER)
    if key.playground_of_id is not None:
        raise Conflict("Nobody has the text of a playground's key. Revoke it; its holder is offered a new one.")
    if not timedelta(0) <= overlap <= MOST_OVERLAP:
        raise Invalid(f"The overlap has to be between 0 and {MOST_OVERLAP.days} days.", "overlap_seconds")
    _check_expiry(expires_at)
    with transaction.atomic():
        _make_room(caller.tenant)
        _lock(key)
        _require_active(key)
        successor = ApiKey.objects.filter(tenant=key.tenant_id, predecessor=key).first()
        if successor is not None:
            raise Conflict(f"The key has a successor already: {successor.public_id}.", code="rotated_already")
        now = timezone.now()
        if expires_at is None and key.expires_at is not None:
            expires_at = now + (key.expires_at - key.created_at)
        inherited = (*Limits.NAMES, "only_models", "only_adapters", "allowed_addresses")
        made, secret = ApiKey.issue(
            key.tenant,
            name=key.name,
            scope=key.scope,
            member=key.member,
            expires_at=expires_at,
            first=key.first or key,
            predecessor=key,
            issued_by=_issuer(caller),
            **{name: getattr(key, name) for name in inherited},
        )
        before = _snapshot(key)
        if overlap:
            key.expires_at = min(key.expires_at or now + overlap, now + overlap)
        else:
            key.revoked_at = now
        key.save(update_fields=["expires_at", "revoked_at"])
        after = _snapshot(key) | {"successor": made.public_id}
        audit.record(caller.actor, "key.rotated", key.public_id, tenant=key.tenant, before=before, after=after)
        audit.record(caller.actor, "key.issued", made.public_id, tenant=key.tenant, after=_snapshot(made))
        if not overlap:
            webhooks.emit(key.tenant, "key.revoked", {"id": key.public_id, "name": key.name})
    return made, secret


def revoke(caller: Caller, key: ApiKey) -> None:
    """End the key for good: new requests are refused at once, running ones and sockets end within seconds. The other
    keys of its line stay. Without effect on a revoked key.
    """
    caller.require(Role.DEVELOPER)
    with transaction.atomic():
        _lock(key)
        if key.revoked_at is not None:
            return
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        after = {"revoked_at": key.revoked_at}
        audit.record(caller.actor, "key.revoked", key.public_id, tenant=key.tenant, after=after)
        webhooks.emit(key.tenant, "key.revoked", {"id": key.public_id, "name": key.name})


def _issuer(caller: Caller) -> str:
    """Whose kind is shown the text: who rotates a key of an operator's has one that no operator knows."""
    return "operator" if caller.actor.for_operators else caller.actor.kind


def _holder(caller: Caller, member: Member | None) -> Member | None:
    """Whose key it becomes. Read again: the tenant's row is locked, so nobody leaves meanwhile."""
    if caller.role != Role.OWNER and (member is None or member != caller.member):
        raise Forbidden("A developer issues keys for itself; others' and the account's own need the role owner.")
    if member is None:
        return None
    rows = Member.objects.select_related("user").filter(tenant=caller.tenant, pk=member.pk)
    found: Member | None = rows.first()
    if found is None:
        raise NotFound("member", str(member), "member")
    if not found.user.is_active:
        raise Conflict(f"{found.user} is switched off.", "member")
    return found


def _make_room(tenant: Tenant) -> None:
    """Raises :class:`~tenants.errors.Conflict` where the tenant has all keys that it may have; two that ask at once
    stand in line.
    """
    hold_tenant(tenant.pk)
    if ApiKey.objects.working().filter(tenant=tenant).count() >= MOST_KEYS:
        raise Conflict(f"An account has at most {MOST_KEYS} keys that work; revoke some.", code="too_many_keys")


def _lock(key: ApiKey) -> None:
    """Read the key again, with all keys of its line locked in one order: a change to one reaches the others."""
    rows: Any = ApiKey.objects.select_for_update(no_key=True).filter(tenant=key.tenant_id)
    list(rows.filter(line=key.line).order_by("pk").values_list("pk"))
    key.refresh_from_db(from_queryset=ApiKey.objects.filter(tenant=key.tenant_id))


def _require_active(key: ApiKey) -> None:
    if key.state != "active":
        raise Conflict(f"The key is {key.state}.", code=f"key_{key.state}")


def _check_expiry(expires_at: datetime | None) -> None:
    now = timezone.now()
    if expires_at is not None and not now < expires_at <= now + MOST_LIFETIME:
        raise Invalid("expires_at has to be in the future, and within a hundred years.", "expires_at")


def _snapshot(key: ApiKey) -> dict[str, Any]:
    """What the audit log compares."""
    return {
        **audit.snapshot(key, ("name", "scope", "expires_at", "revoked_at")),
        "member": None if key.member is None else key.member.user.get_username(),
        "models": restrictions.names_of(key),
        "addresses": key.allowed_addresses,
        **{name: value for name, value in key.own_limits().items() if value is not None},
    }
