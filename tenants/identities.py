"""Accounts of people who sign in through an identity provider."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants import audit, invitations, proofs
from tenants.actors import Actor
from tenants.errors import Conflict, Forbidden, NotFound
from tenants.models import Identity, Invitation, Member

if TYPE_CHECKING:
    from django.contrib.auth.models import User

logger = logging.getLogger(__name__)


def user_of(issuer: str, subject: str, email: str) -> User:
    """Whoever this identity belongs to. The provider's verified ``email`` becomes the account's, by proof; one that
    another account proved stays that account's.

    Raises :class:`~tenants.errors.NotFound` for an identity that was never linked, whatever its address, and
    :class:`~tenants.errors.Forbidden` where the account is switched off.
    """
    found = Identity.objects.select_related("user").filter(issuer=issuer, subject=subject).first()
    if found is None:
        raise NotFound("account", email)
    if not found.user.is_active:
        raise Forbidden("This account is switched off.")
    Identity.objects.filter(pk=found.pk).update(last_used_at=timezone.now())
    try:
        with transaction.atomic():
            proofs.prove(Actor("member", str(found.user)), found.user, email)
    except (Conflict, IntegrityError):
        logger.warning("%s keeps its address: the provider's belongs to another account", found.user)
        found.user.refresh_from_db()
    return found.user


def accept_with_identity(
    invitation: Invitation, issuer: str, subject: str, email: str, from_address: str | None
) -> tuple[User, Member]:
    """Make an account for a new identity whose verified address was invited, and a member of it.

    An account that only claimed the address loses it.

    Raises as :func:`tenants.invitations.accept`; :class:`~tenants.errors.Conflict` where the address was proven by an
    account of its own, which an address alone does not open.
    """
    if email != invitation.email:
        raise Forbidden(f"This invitation is for {invitation.email}; you are signed in as {email}.")
    taken = Conflict(
        f"{email} has an account with a password; sign in with it, then accept the invitation.", None, "account_exists"
    )
    if invitations.is_taken(email, proven=True):
        raise taken
    user = get_user_model()(username=email, email=email)
    user.set_unusable_password()
    try:
        with transaction.atomic():
            actor = Actor("member", str(user), from_address)
            proofs.release_claims(actor, email)
            user.save(force_insert=True)
            _link(actor, user, issuer, subject)
            return user, invitations.accept(invitation, user, from_address, mailed=True)
    except IntegrityError:  # a second tab was faster
        raise taken from None


def link(actor: Actor, user: User, issuer: str, subject: str) -> Identity:
    """Let an identity open an account that exists. Raises :class:`~tenants.errors.Conflict` for one that is linked."""
    try:
        with transaction.atomic():
            return _link(actor, user, issuer, subject)
    except IntegrityError:
        raise Conflict("This identity belongs to an account already.", "subject") from None


def _link(actor: Actor, user: User, issuer: str, subject: str) -> Identity:
    made = Identity.objects.create(issuer=issuer, subject=subject, user=user, last_used_at=timezone.now())
    after = {"issuer": issuer, "subject": subject}
    audit.record(actor, "identity.linked", str(user), tenant=None, after=after)
    return made
