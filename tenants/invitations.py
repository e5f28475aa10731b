"""Invitations: how somebody becomes a member of a tenant."""

from __future__ import annotations

import re
import secrets
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants import audit, proofs, rows, webhooks
from tenants.actors import Actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.keys import Secret
from tenants.models import Invitation, Member, Tenant

if TYPE_CHECKING:
    from django.contrib.auth.models import User

LIFETIME = timedelta(days=7)
MOST_OPEN = 100
"""Open invitations of one tenant at a time: nobody can have the platform write to a whole address book."""

MOST_A_DAY = 300
"""Also of those that were revoked or accepted: each may have been a mail."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


def address(text: str) -> str:
    """An e-mail address as it is compared and stored. Raises :class:`~tenants.errors.Invalid` naming ``email``."""
    email = text.strip().lower()
    try:
        validate_email(email)
    except ValidationError:
        raise Invalid(f"email: {text[:200]!r} is no e-mail address.", "email") from None
    if len(email) > 150:
        raise Invalid("email: at most 150 characters.", "email")
    return email


def invite(
    actor: Actor, tenant: Tenant, email: str, role: Member.Role, *, by: Member | None = None
) -> tuple[Invitation, Secret]:
    """Ask somebody in; the token in the answer exists nowhere else from now on, and is good for :data:`LIFETIME`.

    An earlier open invitation of the same address is void from now on.

    :param by: the member who asks; when it is removed or no owner any more, the invitation is void.

    Raises :class:`~tenants.errors.Invalid`, and :class:`~tenants.errors.Conflict` for somebody who is a member already
    and beyond :data:`MOST_OPEN` and :data:`MOST_A_DAY`.
    """
    email = address(email)
    with transaction.atomic():
        rows.hold_tenant(tenant.pk)
        if Member.objects.filter(tenant=tenant, user__email__iexact=email).exists():
            raise Conflict(f"{email} is a member already.", "email", "already_member")
        opened = Invitation.objects.filter(
            tenant=tenant, accepted_at=None, revoked_at=None, expires_at__gt=timezone.now()
        )
        for earlier in opened.filter(email=email):
            revoke_invitation(actor, earlier)
        if opened.count() >= MOST_OPEN:
            raise Conflict(f"There are {MOST_OPEN} open invitations; revoke some first.", None, "too_many_invitations")
        made = Invitation.objects.filter(tenant=tenant, created_at__gt=timezone.now() - timedelta(days=1))
        if made.count() >= MOST_A_DAY:
            raise Conflict(f"{MOST_A_DAY} invitations were made in 24 hours.", None, "too_many_invitations")
        token = Secret(secrets.token_urlsafe(32))
        invitation = Invitation(
            tenant=tenant,
            email=email,
            role=role,
            digest=digest_of(token.reveal()),
            invited_by=by,
            expires_at=timezone.now() + LIFETIME,
        )
        invitation.save()
        after = {"role": str(role), "expires_at": invitation.expires_at}
        audit.record(actor, "invitation.made", email, tenant=tenant, after=after)
    return invitation, token


def find_invitation(tenant: Tenant, id: UUID | str) -> Invitation:
    """Raises :class:`~tenants.errors.NotFound`, also for another tenant's and for what is no id at all."""
    try:
        wanted = UUID(str(id))
    except ValueError:
        raise NotFound("invitation", str(id)) from None
    found: Invitation | None = Invitation.objects.filter(tenant=tenant, pk=wanted).first()
    if found is None:
        raise NotFound("invitation", str(id))
    return found


def revoke_invitation(actor: Actor, invitation: Invitation) -> None:
    """Raises :class:`~tenants.errors.Conflict` for one that was accepted already."""
    with transaction.atomic():
        locked = Invitation.objects.select_for_update(of=("self",)).filter(tenant=invitation.tenant_id)
        rows.hold(invitation, locked, "invitation", str(invitation.pk))
        if invitation.accepted_at is not None:
            raise Conflict("The invitation was accepted already; remove the member instead.")
        if invitation.revoked_at is None:
            invitation.revoked_at = timezone.now()
            invitation.save(update_fields=["revoked_at"])
            audit.record(actor, "invitation.revoked", invitation.email, tenant=invitation.tenant)


def digest_of(token: str) -> bytes:
    return sha256(token.encode()).digest()


def of_token(token: str) -> Invitation:
    """The open invitation behind a token.

    Raises :class:`~tenants.errors.NotFound` for a token that is unknown, used, revoked or too old: all alike.
    """
    if not _TOKEN.fullmatch(token):
        raise _unknown()
    return of_digest(digest_of(token))


def of_digest(digest: bytes) -> Invitation:
    """As :func:`of_token`."""
    rows = Invitation.objects.unscoped().select_related("tenant")
    found: Invitation | None = rows.filter(digest=digest).first()
    if found is None or found.state != "open" or found.tenant.state != Tenant.State.ACTIVE:
        raise _unknown()
    return found


def accept(invitation: Invitation, user: User, from_address: str | None, *, mailed: bool = False) -> Member:
    """Make ``user``, who has signed in, a member. The invitation has to be for the user's own address.

    :param mailed: the link came from the mailbox, so the address is the user's by proof from now on.

    Raises :class:`~tenants.errors.Forbidden` for another's, :class:`~tenants.errors.NotFound` for an invitation that
    was used or revoked meanwhile, :class:`~tenants.errors.Conflict` for somebody who is a member already.
    """
    if user.email.lower() != invitation.email:
        raise Forbidden(f"This invitation is for {invitation.email}; you are signed in as {user.email or user}.")
    if proofs.owner(invitation.email) not in (None, user):
        raise Forbidden(f"{invitation.email} belongs to another account, which proved it.")
    actor = Actor("member", str(user), from_address)
    with transaction.atomic():
        locked: Invitation = (
            Invitation.objects.select_for_update(of=("self",))
            .select_related("tenant")
            .get(tenant=invitation.tenant_id, pk=invitation.pk)
        )
        if locked.state != "open":
            raise _unknown()
        if Member.objects.filter(tenant=locked.tenant, user=user).exists():
            raise Conflict("You are a member already.", None, "already_member")
        if mailed:
            proofs.prove(actor, user, locked.email)
        member: Member = Member.objects.create(tenant=locked.tenant, user=user, role=locked.role)
        locked.accepted_at = timezone.now()
        locked.save(update_fields=["accepted_at"])
        audit.record(actor, "member.joined", str(user), tenant=locked.tenant, after={"role": member.role})
        shown = {"id": str(member.public_id), "username": str(user), "role": member.role}
        webhooks.emit(locked.tenant, "member.joined", shown)
    return member


def accept_with_password(
    invitation: Invitation, password: str, from_address: str | None, *, mailed: bool = False
) -> tuple[User, Member]:
    """Make an account for the invited address, and a member of it.

    :param mailed: as for :func:`accept`; an account that only claimed the address loses it.

    Raises as :func:`accept`; :class:`~tenants.errors.Conflict` where the address has an account, whose owner has to
    sign in first; ``ValidationError`` for a password that is too weak.
    """
    model = get_user_model()
    if is_taken(invitation.email, proven=mailed):
        raise _has_account(invitation.email)
    user = model(username=invitation.email, email=invitation.email)
    validate_password(password, user)
    user.set_password(password)
    try:
        with transaction.atomic():
            if mailed:
                proofs.release_claims(Actor("member", str(user), from_address), invitation.email)
            user.save(force_insert=True)
            member = accept(invitation, user, from_address, mailed=mailed)
    except IntegrityError:  # a second tab was faster
        raise _has_account(invitation.email) from None
    return user, member


def is_taken(email: str, *, proven: bool) -> bool:
    """Whether an account stands in the way of a new one with this address: to a ``proven`` address a claim does not."""
    return proofs.owner(email) is not None if proven else proofs.holders(email).exists()


def _has_account(email: str) -> Conflict:
    return Conflict(f"{email} has an account already; sign in to accept the invitation.", None, "account_exists")


def _unknown() -> NotFound:
    """Without the token in it."""
    return NotFound("open invitation", "…")
