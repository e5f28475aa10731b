from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import plans
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_plan, subject


class Command(JsonCommand):
    help = "Delete a plan that has neither tenants nor prices."
    example = "manage.py delete_plan small"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "plan", "its name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        plan = find_plan(subject(options, "plan"))
        name = plan.name
        plans.delete(of_command(), plan)
        return {"plan": name, "deleted": True}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Plan {result['plan']} is deleted."
