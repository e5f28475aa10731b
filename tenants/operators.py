"""The people who run the platform: accounts that belong to no tenant in particular."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.db import transaction

from tenants import audit, playground, proofs
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.invitations import address
from tenants.models import Identity

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def find_user(username: str) -> User:
    """As it was typed, or in small letters where it is an address. Raises :class:`~tenants.errors.NotFound`."""
    users = get_user_model().objects
    user = users.filter(username=username).first()
    if user is None and "@" in username:
        user = users.filter(username=username.lower()).first()
    if user is None:
        raise NotFound("account", username)
    return user


def create_operator(actor: Actor, username: str, email: str) -> User:
    """An account of a platform operator, without a password yet. A name that is an address is in small letters, as
    people's who were invited.

    Raises :class:`~tenants.errors.Invalid` and :class:`~tenants.errors.Conflict`.
    """
    model = get_user_model()
    if not username or len(username) > 150 or not username.isprintable():
        raise Invalid("username has to be 1 to 150 printable characters.", "username")
    username = username.lower() if "@" in username else username
    email = address(email)
    with transaction.atomic():
        if model.objects.filter(username=username).exists():
            raise Conflict(f"There is an account {username!r} already.", "username")
        if proofs.holders(email).exists():
            raise Conflict(f"An account has the address {email} already; free_address takes it away.", "email")
        user = model(username=username, email=email, is_staff=True, is_superuser=True)
        user.set_unusable_password()
        user.save(force_insert=True)
        audit.record(actor, "operator.created", username, tenant=None, after={"email": email})
    return user


def remove_operator(actor: Actor, username: str) -> None:
    """Take an operator's rights away at once, and revoke the operator's playground keys: running streams stop within
    seconds. The person's account stays, for tenants it may be a member of.

    Raises :class:`~tenants.errors.NotFound`, and :class:`~tenants.errors.Conflict` for the last one who can sign in.
    """
    with transaction.atomic():
        staff = get_user_model().objects.select_for_update().filter(is_staff=True).order_by("pk")
        found = {user.username: user for user in staff}
        user = found.get(username) or (found.get(username.lower()) if "@" in username else None)
        if user is None:
            raise NotFound("operator", username)
        keep_an_operator(user)
        user.is_staff = user.is_superuser = False
        user.save(update_fields=["is_staff", "is_superuser"])
        playground.end_operators(actor, user)
        audit.record(actor, "operator.removed", user.username, tenant=None)


def keep_an_operator(user: User) -> None:
    """In the transaction in which ``user`` stops being an operator who can sign in. All operators' rows are locked, so
    that of two who switch each other off the second sees the first.

    Raises :class:`~tenants.errors.Conflict` where nobody else can sign in; where ``user`` cannot either, another
    account that waits for its password is enough.
    """
    staff = list(get_user_model().objects.select_for_update().filter(is_staff=True).order_by("pk"))
    others = [other for other in staff if other != user and other.is_active]
    if user not in staff or any(map(_can_sign_in, others)):
        return
    if not others or _can_sign_in(user):
        raise Conflict("The platform would be left without an operator who can sign in.")


def _can_sign_in(user: User) -> bool:
    """With a password, or through a provider: an address that was proven opens nothing."""
    own = user.is_active and bool(user.password) and user.has_usable_password()
    return own or (user.is_active and Identity.objects.filter(user=user).exclude(issuer=proofs.MAIL).exists())
