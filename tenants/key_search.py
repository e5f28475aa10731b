"""Finding keys in long lists, and what a key is doing at the moment."""

from __future__ import annotations

import re
from typing import Any, cast

from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants.keys import PREFIX
from tenants.models import ApiKey, InferenceRequest

STATES = ("active", "expired", "revoked")

_ID = re.compile(rf"(?:{PREFIX})?([0-9A-Za-z]{{12}})(?:_.*)?", re.ASCII)


def searched(rows: QuerySet[ApiKey], text: str, *, accounts: bool = False) -> QuerySet[ApiKey]:
    """Those whose own or whose member's name has ``text`` in it, or the one whose id it is, also as the beginning of
    the key itself: ``lpx_live_<id>_…``. Without a text all of them.

    :param accounts: also by their account's short name.
    """
    if not text:
        return rows
    by_id = _ID.fullmatch(text)
    if by_id is not None and rows.filter(public_id=by_id[1]).exists():
        return rows.filter(public_id=by_id[1])
    named = Q(name__icontains=text) | Q(member__user__username__icontains=text)
    return rows.filter(named | Q(tenant__slug__icontains=text) if accounts else named)


def in_state(rows: QuerySet[ApiKey], state: str) -> QuerySet[ApiKey]:
    """Those in one of :data:`STATES` at this moment; for any other text all of them."""
    if state == "revoked":
        return rows.exclude(revoked_at=None)
    if state == "expired":
        return rows.filter(revoked_at=None, expires_at__lte=timezone.now())
    if state == "active":
        working: QuerySet[ApiKey] = cast("Any", rows).working()
        return working
    return rows


def running(key: ApiKey) -> int:
    """How many requests run with this very key now: what a revocation ends."""
    count: int = InferenceRequest.objects.running().filter(tenant=key.tenant_id, key=key).count()
    return count
