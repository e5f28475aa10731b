"""Keys of the platform's operators: issue and revoke. They open ``/api/operator/…`` and nothing else."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from tenants import audit
from tenants.actors import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.keys import Secret
from tenants.models import OperatorKey


def find(text: str) -> OperatorKey:
    """By name or public id. Raises :class:`~tenants.errors.NotFound`."""
    rows = OperatorKey.objects.filter(Q(name=text) | Q(public_id=text)).order_by("pk")
    found: OperatorKey | None = rows.first() if text.isprintable() else None
    if found is None:
        raise NotFound("operator key", text)
    return found


def issue(actor: Actor, name: str, *, expires_at: datetime | None = None) -> tuple[OperatorKey, Secret]:
    """A new key and its text, which exists nowhere else from now on.

    :param name: who or what uses it, as the audit log will say; never given out twice, not even after revocation.

    Raises :class:`~tenants.errors.Invalid` and :class:`~tenants.errors.Conflict`.
    """
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise Invalid("name has to be 1 to 100 printable characters.", "name")
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid("expires_at has to be in the future.", "expires_at")
    with transaction.atomic():
        if OperatorKey.objects.filter(name=name).exists():
            raise _taken(name)
        try:
            with transaction.atomic():
                key, secret = OperatorKey.issue(name, expires_at=expires_at)
        except (IntegrityError, ValidationError):  # somebody else was first, after the look above
            raise _taken(name) from None
        after = audit.snapshot(key, ("public_id", "expires_at"))
        audit.record(actor, "operator_key.issued", name, tenant=None, after=after)
    return key, secret


def _taken(name: str) -> Conflict:
    return Conflict(f"There is or was an operator key {name!r}; the log has to tell them apart.", "name")


def revoke(actor: Actor, key: OperatorKey) -> None:
    """From the next request on. Without effect on a revoked key."""
    with transaction.atomic():
        key.refresh_from_db(from_queryset=OperatorKey.objects.select_for_update())
        if key.revoked_at is not None:
            return
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        audit.record(actor, "operator_key.revoked", key.name, tenant=None, after={"revoked_at": key.revoked_at})
