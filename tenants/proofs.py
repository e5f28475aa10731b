"""E-mail addresses of accounts. An address is *claimed* by whoever made an account with a link that somebody showed
them, and *proven* by whoever opened a link from their mailbox or comes through a provider that verified it. The proof
is kept as an identity whose issuer is :data:`MAIL`, so the database itself keeps one owner to an address.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac

from tenants import audit
from tenants.actors import Actor, of_task
from tenants.errors import Conflict, NotFound
from tenants.models import Identity, Member
from tenants.sessions import end_sessions

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAIL: Final = "mailto:"
"""No provider is called so: an issuer is an address of the web."""


def mailed(token: str) -> str:
    """An invitation's token as mail alone carries it: whoever shows it has read the invited mailbox."""
    return f"{token}.{_signature(token)}"


def opened(text: str) -> tuple[str, bool]:
    """The token of a link, and whether it came by mail. A wrong signature is as good as none."""
    token, dot, signature = text.partition(".")
    if not dot:
        return token, False
    return token, constant_time_compare(signature, _signature(token))


def _signature(token: str) -> str:
    return salted_hmac("tenants.proofs.mailed", token, algorithm="sha256").hexdigest()


def holders(email: str) -> QuerySet[User]:
    """Accounts with this address, claimed or proven. :param email: in lower case."""
    return get_user_model().objects.filter(Q(username=email) | Q(email__iexact=email)).order_by("pk")


def owner(email: str) -> User | None:
    """Whose the address is by proof. An operator's is: whoever runs the platform vouched for it."""
    found = Identity.objects.select_related("user").filter(issuer=MAIL, subject=email).first()
    return found.user if found is not None else holders(email).filter(is_staff=True).first()


def prove(actor: Actor, user: User, email: str) -> None:
    """``user`` owns ``email`` from now on, as its only address; whoever merely claimed it loses it, and is signed out.

    Raises :class:`~tenants.errors.Conflict` where it is another's by proof.
    """
    with transaction.atomic():
        if owner(email) not in (None, user):
            raise Conflict(f"{email} belongs to another account.", "email", "account_exists")
        release_claims(actor, email, but=user)
        if user.email != email:
            user.email = email
            user.save(update_fields=["email"])
        Identity.objects.filter(issuer=MAIL, user=user).exclude(subject=email).delete()
        proof, made = Identity.objects.get_or_create(issuer=MAIL, subject=email, defaults={"user": user})
        if proof.user_id != user.pk:  # another was faster
            raise Conflict(f"{email} belongs to another account.", "email", "account_exists")
        if made:
            audit.record(actor, "account.address_proven", str(user), tenant=None, after={"email": email})


def release_claims(actor: Actor, email: str, but: User | None = None) -> None:
    """Take an address, whose :func:`owner` is nobody or ``but``, from every other account, which only claims it."""
    for user in holders(email).select_for_update():
        if user != but:
            _release(actor, user, email)


def free(actor: Actor, email: str) -> list[User]:
    """An operator's word against a claim or a proof: no account has the address afterwards. Returns those that had it.

    Raises :class:`~tenants.errors.NotFound`, and :class:`~tenants.errors.Conflict` for an operator's own address.
    """
    with transaction.atomic():
        found = list(holders(email).select_for_update())
        if not found:
            raise NotFound("account", email)
        if any(user.is_staff for user in found):
            raise Conflict(f"{email} is an operator's address.", "email")
        Identity.objects.filter(issuer=MAIL, subject=email).delete()
        for user in found:
            _release(actor, user, email)
    return found


def _release(actor: Actor, user: User, email: str) -> None:
    """The account keeps its password and its memberships. Where the address was its name too, it gets another name,
    which its tenants find in their audit logs.
    """
    before = {"username": user.username, "email": user.email}
    if user.username == email:
        user.username = f"unproven-{secrets.token_hex(6)}"
    if user.email.lower() == email:
        user.email = ""
    user.save(update_fields=["username", "email"])
    end_sessions(user)
    after = {"username": user.username, "email": user.email}
    audit.record(actor, "account.address_lost", before["username"], tenant=None, before=before, after=after)
    for member in Member.objects.unscoped().select_related("tenant").filter(user=user):
        # Without who it was and from where: that is no business of these tenants.
        audit.record(
            of_task("proofs"),
            "account.address_lost",
            before["username"],
            tenant=member.tenant,
            before=before,
            after=after,
        )
