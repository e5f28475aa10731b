from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import provisioning
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_plan, find_tenant, subject


class Command(JsonCommand):
    help = (
        "Change a tenant's name for people, its plan or its share of busy workers. Its short name never "
        "changes; its limits: set_limits."
    )
    example = "manage.py change_tenant acme --plan large --weight 2"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--display-name", help="name for people")
        parser.add_argument("--plan", help="whose limits hold where the tenant has none of its own")
        parser.add_argument("--weight", type=int, help="share of a busy worker, against other tenants; from 1")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if options["display_name"] is None and options["plan"] is None and options["weight"] is None:
            raise CommandError("Say at least one of --display-name, --plan, --weight.")
        tenant = find_tenant(subject(options, "tenant"))
        provisioning.change(
            of_command(),
            tenant,
            display_name=options["display_name"],
            plan=None if options["plan"] is None else find_plan(options["plan"]),
            weight=options["weight"],
        )
        names = {"tenant": tenant.slug, "display_name": tenant.display_name}
        return names | {"plan": tenant.plan.name, "weight": tenant.weight}

    def describe(self, result: dict[str, Any]) -> str:
        weight = f"weight {result['weight']}"
        return f"{result['tenant']} ({result['display_name']}) is on plan {result['plan']}, {weight}."
