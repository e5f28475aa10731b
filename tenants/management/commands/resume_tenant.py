from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import provisioning
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Take the requests of a suspended tenant again."
    example = "manage.py resume_tenant acme --reason 'ticket 4711'"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--reason", default="", help="for the audit log")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        provisioning.resume(of_command(), tenant, options["reason"])
        return {"tenant": tenant.slug, "state": tenant.state}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['tenant']} is {result['state']}."
