"""Which peppers stored keys still need. A key goes over to the newest one when it is used; the rest has to be waited
for, rotated or revoked before an old pepper can be thrown away.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Count, Q

from tenants import keys
from tenants.models import ApiKey, OperatorKey

MOST_NAMED = 1000


@dataclass(frozen=True, slots=True)
class Pepper:
    """:param known: it is configured; without it no key that needs it can be checked.
    :param keys: tenants' keys that work and need it. :param operator_keys: as many of operators.
    """

    version: int
    known: bool
    keys: int
    operator_keys: int


def peppers() -> list[Pepper]:
    """Every pepper that is configured or needed, the newest first."""
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for place, working in enumerate((ApiKey.objects.unscoped().working(), OperatorKey.objects.working())):
        for version, count in working.order_by().values_list("pepper_version").annotate(Count("pk")):
            counts[version][place] = count
    configured: dict[int, bytes] = settings.KEY_PEPPERS
    versions = sorted({*counts, *configured}, reverse=True)
    return [Pepper(version, version in configured, *counts[version]) for version in versions]


def behind() -> list[dict[str, Any]]:
    """Keys that work and need another pepper than the newest, the longest unused first; at most :data:`MOST_NAMED`."""
    old = ~Q(pepper_version=keys.current_pepper())
    rows = ApiKey.objects.unscoped().working().filter(old).select_related("tenant").order_by("last_used_at", "pk")
    found: list[dict[str, Any]] = [
        {
            "tenant": key.tenant.slug,
            "public_id": key.public_id,
            "name": key.name,
            "pepper": key.pepper_version,
            "last_used_at": key.last_used_at and key.last_used_at.isoformat(),
        }
        for key in rows[:MOST_NAMED]
    ]
    found += [
        {
            "tenant": None,
            "public_id": key.public_id,
            "name": key.name,
            "pepper": key.pepper_version,
            "last_used_at": key.last_used_at and key.last_used_at.isoformat(),
        }
        for key in OperatorKey.objects.working().filter(old).order_by("last_used_at", "pk")
    ]
    return found
