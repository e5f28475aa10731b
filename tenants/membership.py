"""Members of a tenant: their roles, and how they leave. A tenant always keeps an owner.

What they may use is changed by :mod:`tenants.limits` and :mod:`tenants.restrictions`.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from tenants import audit, key_ring, rows, webhooks
from tenants.actors import Actor
from tenants.callers import Caller, Role
from tenants.errors import Conflict, NotFound
from tenants.models import ApiKey, Invitation, Member, Tenant

LAST_OWNER: Final = "last_owner"
"""Code of the :class:`~tenants.errors.Conflict` for a change that would leave a tenant without an owner."""


def find_member(tenant: Tenant, public_id: UUID | str, param: str | None = None) -> Member:
    """Raises :class:`~tenants.errors.NotFound`, also for another tenant's member and for what is no id at all."""
    try:
        wanted = UUID(str(public_id))
    except ValueError:
        raise NotFound("member", str(public_id), param) from None
    member: Member | None = Member.objects.select_related("user").filter(tenant=tenant, public_id=wanted).first()
    if member is None:
        raise NotFound("member", str(public_id), param)
    return member


def change_role(actor: Actor, member: Member, role: Member.Role) -> None:
    """Holds from the member's next call on, also for what its keys may manage.

    Raises :class:`~tenants.errors.Conflict` with the code :data:`LAST_OWNER`.
    """
    with transaction.atomic():
        _lock(member)
        if member.role == role:
            return
        before = member.role
        if before == Member.Role.OWNER:
            _require_another_owner(member)
        member.role = role
        member.save(update_fields=["role"])
        if before == Member.Role.OWNER:
            _withdraw_invitations(actor, member)
        audit.record(
            actor,
            "member.role_changed",
            str(member.user),
            tenant=member.tenant,
            before={"role": before},
            after={"role": str(role)},
        )


def remove(actor: Actor, member: Member) -> int:
    """End a membership: its keys and open invitations are revoked in the same transaction, so its running streams stop
    within seconds as after any revocation. Requests and ledger keep naming the member; the person's account stays,
    for other tenants.

    Returns how many keys were revoked. Raises :class:`~tenants.errors.Conflict` with the code :data:`LAST_OWNER`.
    """
    with transaction.atomic():
        _lock(member)
        if member.role == Member.Role.OWNER:
            _require_another_owner(member)
        keys = _revoke_keys(actor, member)
        _withdraw_invitations(actor, member)
        tenant, name, role = member.tenant, str(member.user), member.role
        shown = {"id": str(member.public_id), "username": name}
        member.delete()
        audit.record(actor, "member.removed", name, tenant=tenant, before={"role": role})
        webhooks.emit(tenant, "member.removed", shown)
    return keys


def dismiss(caller: Caller, member: Member) -> int:
    """As :func:`remove`, for whoever asks: owners remove anybody, everybody may leave.

    Raises :class:`~tenants.errors.Forbidden` too.
    """
    if caller.member is None or caller.member.pk != member.pk:
        caller.require(Role.OWNER)
    return remove(caller.actor, member)


def end_access(actor: Actor, member: Member) -> int:
    """Revoke the keys of a member whose account is being switched off, and what it promised as an owner; the
    membership stays. In the transaction that switches the account off.

    Returns how many keys were revoked. Raises :class:`~tenants.errors.Conflict` with the code :data:`LAST_OWNER`.
    """
    _lock(member)
    if member.role == Member.Role.OWNER:
        _require_another_owner(member)
        _withdraw_invitations(actor, member)
    return _revoke_keys(actor, member)


def _lock(member: Member) -> None:
    """First the tenant's row, so that of two changes to its owners the second sees the first; then the member's, which
    a key being issued to it waits for. ``NO KEY`` leaves admissions and new rows of the tenant alone.
    """
    rows.hold_tenant(member.tenant_id)
    locked = Member.objects.select_for_update(of=("self",)).filter(tenant_id=member.tenant_id)
    rows.hold(member, locked, "member", str(member.public_id))


def _require_another_owner(member: Member) -> None:
    """Somebody who can sign in: an owner whose account is switched off owns nothing."""
    owners = Member.objects.filter(tenant=member.tenant_id, role=Member.Role.OWNER, user__is_active=True)
    if not owners.exclude(pk=member.pk).exists():
        message = f"The account {member.tenant.slug} needs an owner. Make somebody else an owner first."
        raise Conflict(message, None, LAST_OWNER)


def _revoke_keys(actor: Actor, member: Member) -> int:
    """As the account's own decision, whoever leaves: also a viewer's keys from better days."""
    account = Caller("membership", member.tenant, Role.OWNER, actor)
    found: list[ApiKey] = list(ApiKey.objects.filter(tenant=member.tenant_id, member=member, revoked_at=None))
    for key in found:
        key_ring.revoke(account, key)
    return len(found)


def _withdraw_invitations(actor: Actor, member: Member) -> None:
    """What somebody promised as an owner is not kept once they are none."""
    opened = Invitation.objects.filter(tenant=member.tenant_id, invited_by=member, accepted_at=None, revoked_at=None)
    for invitation in opened.select_for_update(of=("self",)):
        invitation.revoked_at = timezone.now()
        invitation.save(update_fields=["revoked_at"])
        audit.record(actor, "invitation.revoked", invitation.email, tenant=member.tenant)
