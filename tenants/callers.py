"""Who calls the management API, and what they may do there: a tenant's own people and keys, or an operator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db.models import Q
from django.utils import timezone

from tenants import addresses, denials, keys
from tenants.access import address_denied
from tenants.actors import Actor, of_command
from tenants.errors import Denied, Forbidden, InvalidKey, KeyEnded, Suspended
from tenants.models import ApiKey, Member, OperatorKey, Tenant

if TYPE_CHECKING:
    from django.contrib.auth.models import User

Role = Member.Role

_RANK = {Role.VIEWER: 0, Role.DEVELOPER: 1, Role.OWNER: 2}
_TOUCH = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who acts for one tenant: everything they reach is reached through ``tenant``.

    :param name: unique among all callers, the same each time: whose idempotency keys these are.
    :param member: the person behind it; ``None`` for a key that belongs to the tenant as a whole.
    :param key: the key they called with, if they did.
    :param user: who is signed in, a member or an operator; ``None`` for keys and commands.
    """

    name: str
    tenant: Tenant
    role: Role
    actor: Actor
    member: Member | None = None
    key: ApiKey | None = None
    user: User | None = None

    def require(self, role: Role) -> None:
        """Raises :class:`~tenants.errors.Forbidden` for anybody of a lower role."""
        if _RANK[self.role] < _RANK[role]:
            raise Forbidden(f"This needs the role {role.value}; you have {self.role.value}.")


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who runs the platform. :param name: as of :class:`Caller`. :param user: likewise."""

    name: str
    actor: Actor
    user: User | None = None


def caller_of_command(tenant: Tenant) -> Caller:
    """Whoever runs a management command may do what an owner may."""
    actor = of_command()
    return Caller(str(actor), tenant, Role.OWNER, actor)


def caller_of_key(text: str, address: str | None, *, inference: bool = False) -> Caller:
    """The tenant's caller who holds this key. A key acts with its member's role, one of the tenant's own as an owner.

    :param inference: a key of that scope may call too: OpenAI's own endpoints.

    Raises :class:`~tenants.errors.InvalidKey` for every kind of wrong key, :class:`~tenants.errors.Forbidden` for
    an inference key and where the tenant is suspended, and :class:`~tenants.errors.Denied` for a wrong address. What is
    refused to whoever holds the key is told to :mod:`tenants.denials`, other than keys of the wrong scope.
    """
    parsed = keys.parse(text)
    key: ApiKey | None = (
        ApiKey.objects.unscoped().select_related("tenant", "member__user").filter(public_id=parsed.public_id).first()
    )
    if key is None or not _matches(key, parsed):
        raise InvalidKey
    try:
        _check(key, address, inference=inference)
    except (KeyEnded, Denied, Suspended) as error:
        denials.tell(key.tenant_id, key.pk, error.code, str(error))
        raise
    _used(key, parsed)
    role = Role(key.member.role) if key.member is not None else Role.OWNER
    actor = Actor("key", key.public_id, address, operators_key=key.issued_by == "operator")
    return Caller(f"key:{key.pk}", key.tenant, role, actor, key.member, key)


def operator_of_key(text: str, address: str | None) -> Operator:
    """Raises :class:`~tenants.errors.InvalidKey`."""
    parsed = keys.parse(text, keys.OPERATOR_PREFIX)
    key = OperatorKey.objects.filter(public_id=parsed.public_id).first()
    if key is None or not _matches(key, parsed) or _ended(key):
        raise InvalidKey
    _used(key, parsed)
    return Operator(f"operator:{key.pk}", Actor("operator", key.name, address))


def _check(key: ApiKey, address: str | None, *, inference: bool) -> None:
    """Whether whoever holds it may use it now, here and for this."""
    if _ended(key):
        raise KeyEnded(key.tenant_id, key.pk, "key_expired" if key.revoked_at is None else "key_revoked")
    if key.member is not None and not key.member.user.is_active:
        raise InvalidKey
    if key.scope != ApiKey.Scope.MANAGE and not inference:
        raise Forbidden("This key is for inference. Managing what the tenant has needs a key of scope manage.")
    if not addresses.allowed(addresses.networks(key.allowed_addresses), address):
        raise address_denied(address)
    if key.tenant.state != Tenant.State.ACTIVE:
        raise Suspended


def _matches(key: ApiKey | OperatorKey, parsed: keys.ParsedKey) -> bool:
    return keys.matches(parsed.secret, bytes(key.digest), key.pepper_version)


def _ended(key: ApiKey | OperatorKey) -> bool:
    return key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= timezone.now())


def _used(key: ApiKey | OperatorKey, parsed: keys.ParsedKey) -> None:
    """``last_used_at``, to the minute, so that callers in a hurry do not write a row each time; and a digest made with
    an older pepper gives way to one of the newest.
    """
    row, now, newest = type(key)._base_manager.filter(pk=key.pk), timezone.now(), keys.current_pepper()
    if key.last_used_at is None or now - key.last_used_at > _TOUCH:
        row.filter(Q(last_used_at=None) | Q(last_used_at__lt=now - _TOUCH)).update(last_used_at=now)
    if key.pepper_version != newest:
        digest = keys.hash(parsed.secret, newest)
        row.filter(pepper_version=key.pepper_version).update(digest=digest, pepper_version=newest)
