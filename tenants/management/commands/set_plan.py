from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import plans
from tenants.actors import of_command
from tenants.counted import counted
from tenants.limits import names_for
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
        changes = bounds.given_limits(options)
        plan = Plan.objects.filter(name=name).first()
        created = plan is None
        if plan is None:
            plan = plans.create(of_command(), name, changes)
        else:
            plans.change(of_command(), plan, changes)
        limits = {limit: getattr(plan, limit) for limit in names_for(Plan)}
        return {"plan": name, "created": created, "limits": limits, "tenants": plan.tenants.count()}

    def describe(self, result: dict[str, Any]) -> str:
        head = f"Plan {result['plan']}, of {counted(result['tenants'], 'tenant')}:"
        return "\n".join([head, *bounds.describe_limits(result["limits"], result["limits"], "none")])
