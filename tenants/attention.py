"""What somebody of a tenant has to do something about: what it is, and what to do. Found by looking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q, Sum
from django.utils import timezone

from tenants.alerts import EXPIRY_NOTICE
from tenants.counted import counted
from tenants.models import AdapterVersion, ApiKey, Denial, Tenant, Webhook

NEAR = 0.8
"""Of a budget or quota, from which on it is worth a word."""

REJECTED_FOR = timedelta(days=7)
"""An older rejection is nobody's business any more."""

SHOWN = 3
"""Of one kind; how many more there are is said."""

_QUOTAS = {
    "budget_hard": ("this month's budget", "Raise the budget, or use less until the month (UTC) ends."),
    "tokens_per_day": ("today's tokens", "Ask an operator for a larger quota, or wait until the day (UTC) ends."),
    "tokens_per_month": (
        "this month's tokens",
        "Ask an operator for a larger quota, or wait for the next month (UTC).",
    ),
}


def attention(tenant: Tenant, standing: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``code``, ``about``, ``message`` and ``action`` each, and where the message goes on with a time, that as ``at``
    and its ``rest``; the same number of queries whatever the tenant has.

    :param standing: the tenant's own, of :func:`tenants.standing.standing`.
    """
    return [
        *_used_up(standing["limits"]),
        *_expiring(tenant),
        *_rejected(tenant),
        *_failing(tenant),
        *_refused(tenant),
    ]


def _used_up(limits: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, str]]:
    for name, (what, action) in _QUOTAS.items():
        limit = limits.get(name)
        if limit is None or not limit["limit"]:
            continue
        share = limit["used"] / limit["limit"]
        if share >= 1:
            yield _alert("limit_reached", name, f"All of {what} is used: requests are refused.", action)
        elif share >= NEAR:
            yield _alert("limit_near", name, f"{share:.0%} of {what} is used.".replace("%", " %"), action)
    soft = limits.get("budget_soft")
    if soft is not None and not soft["left"]:
        yield _alert(
            "budget_soft", "budget_soft", "This month's soft budget is reached.", "See what was used, by whom."
        )


def _expiring(tenant: Tenant) -> Iterator[dict[str, Any]]:
    keys = ApiKey.objects.working().filter(tenant=tenant, expires_at__lt=timezone.now() + EXPIRY_NOTICE, successor=None)
    for key, more in _some(keys.order_by("expires_at", "pk")):
        alert = _alert(
            "key_expiring",
            key.public_id,
            f"The key {key.name or key.public_id} expires on",
            "Rotate it; both work until the old one ends.",
        )
        yield alert | {"at": key.expires_at, "rest": f"{more}."}


def _rejected(tenant: Tenant) -> Iterator[dict[str, str]]:
    later = AdapterVersion.objects.unscoped().filter(adapter=OuterRef("adapter"), number__gt=OuterRef("number"))
    versions = AdapterVersion.objects.filter(
        ~Exists(later),
        adapter__tenant=tenant,
        adapter__deleted_at=None,
        state=AdapterVersion.State.REJECTED,
        created_at__gte=timezone.now() - REJECTED_FOR,
    ).select_related("adapter")
    for version, more in _some(versions.order_by("-created_at")):
        message = f"Version {version.number} of the adapter {version.adapter.name} was rejected{more}."
        yield _alert("adapter_rejected", version.adapter.name, message, "Read its report, mend it, upload it again.")


def _failing(tenant: Tenant) -> Iterator[dict[str, str]]:
    hooks = Webhook.objects.filter(tenant=tenant).filter(
        Q(state=Webhook.State.DISABLED) | Q(state=Webhook.State.ACTIVE, failing_since__isnull=False)
    )
    for hook, more in _some(hooks.order_by("id")):
        name, off = hook.description or hook.host, hook.state == Webhook.State.DISABLED
        message = f"The webhook {name[:100]} {'was switched off after failing long' if off else 'fails'}{more}."
        action = "Mend its receiver, then switch it on and replay." if off else "Look at its last deliveries."
        yield _alert("webhook_failing", str(hook.pk), message, action)


_HELPS = {
    "address_not_allowed": "See which keys, from where, and whether their addresses should be allowed.",
    "model_not_found": "See which keys, and whether they should ask for another model or be allowed this one.",
    "key_revoked": "See which keys, and give whoever uses them new ones.",
    "key_expired": "See which keys, and give whoever uses them new ones.",
}
"""What to do about refusals for which there is no limit, by code."""


def _refused(tenant: Tenant) -> Iterator[dict[str, str]]:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    denials = Denial.objects.filter(tenant=tenant, hour=hour).values("code", "limit").annotate(sum=Sum("count"))
    for row in denials.order_by("-sum")[:SHOWN]:
        why = row["limit"] or row["code"]
        message = f"{counted(row['sum'], 'request was', 'requests were')} refused in this hour: {why}."
        action = _HELPS.get(row["code"], "See which keys.")
        if row["limit"]:
            action = "See which keys, and whether they should be slower or have more."
        yield _alert("refused", why, message, action)


def _some(rows: Any) -> Iterator[tuple[Any, str]]:
    """The first ones, and with the last of them how many more there are."""
    found = list(rows[: SHOWN + 20])
    more = len(found) - SHOWN
    text = "" if more <= 0 else f" ({more} more)" if more < 20 else " (20 more or more)"
    for place, row in enumerate(found[:SHOWN]):
        yield row, text if place == SHOWN - 1 else ""


def _alert(code: str, about: str, message: str, action: str) -> dict[str, Any]:
    return {"code": code, "about": about, "message": message, "action": action}
