from __future__ import annotations

import re
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.management import bounds
from tenants.management.command import JsonCommand, add_subject, subject
from tenants.models import Plan


class Command(JsonCommand):
    help = "Make a plan, or change one: the limits of all tenants on it that have no limits of their own."
    example = "manage.py set_plan small --requests-per-minute 60 --tokens-per-month 5000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "plan", "its name: letters, digits, hyphens, underscores")
        bounds.add_limits(parser)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        name = subject(options, "plan")
        plan = Plan.objects.filter(name=name).first()
        created = plan is None
        plan = plan or Plan(name=name)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", name):
            raise CommandError(f"A plan's name has 1 to 63 letters, digits, hyphens and underscores, unlike {name!r}.")
        changes = bounds.given_limits(options)
        for limit, value in changes.items():
            setattr(plan, limit, value)
        bounds.check_budgets(plan, changes)
        plan.full_clean()
        plan.save()
        return {"plan": name, "created": created, "limits": plan.own_limits(), "tenants": plan.tenants.count()}

    def describe(self, result: dict[str, Any]) -> str:
        head = f"Plan {result['plan']}, of {result['tenants']} tenants:"
        return "\n".join([head, *bounds.describe_limits(result["limits"], result["limits"], "none")])
