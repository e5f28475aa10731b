from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants.management import bounds
from tenants.management.command import JsonCommand
from tenants.standing import standing

_NAMES = ("budget_soft", "budget_hard")


class Command(JsonCommand):
    help = (
        "What a tenant, a key or a member has spent this month (UTC), and its budgets; with flags, set them. "
        "In micro-units: a millionth of the currency in which prices are set."
    )
    example = "manage.py budget acme --budget-soft 40000000 --budget-hard 50000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        bounds.add_bound(parser)
        bounds.add_limits(parser, _NAMES)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        bound = bounds.bound(options)
        changes = bounds.given_limits(options, _NAMES)
        if changes:
            bounds.change(bound, changes)
        rows = {row["subject"]: row for row in standing(bound.tenant, bound.member, bound.key)}
        row = rows.get(bound.subject, {"limits": {}, "month_cost": 0, "held_cost": 0})
        hard, soft = (row["limits"].get(name, {}).get("limit") for name in ("budget_hard", "budget_soft"))
        committed = row["month_cost"]
        return {
            "tenant": bound.tenant.slug,
            "subject": bound.subject,
            "name": bound.name,
            "committed": committed,
            "held": row["held_cost"],
            "soft": soft,
            "hard": hard,
            "left": None if hard is None else max(hard - committed, 0),
            "over_soft": soft is not None and committed >= soft,
        }

    def describe(self, result: dict[str, Any]) -> str:
        hard = "no hard limit" if result["hard"] is None else f"{result['left']} of {result['hard']} left"
        soft = "" if result["soft"] is None else f", soft limit {result['soft']}"
        over = " (reached)" if result["over_soft"] else ""
        return (
            f"{result['name']}: {result['committed']} micro-units this month, "
            f"{result['held']} held by running requests; {hard}{soft}{over}."
        )
