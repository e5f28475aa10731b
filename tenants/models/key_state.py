"""Which keys work: one rule for tenants' keys and operators'."""

from __future__ import annotations

from django.db.models import Q
from django.utils import timezone


def works() -> Q:
    """Of keys that are neither revoked nor expired at this moment."""
    return Q(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)
