from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import provisioning
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = (
        "Delete a tenant that never made a request and keeps no adapters, with its keys and members; others "
        "can only be suspended."
    )
    example = "manage.py delete_tenant acme"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        slug = tenant.slug
        provisioning.delete(of_command(), tenant)
        return {"tenant": slug, "deleted": True}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['tenant']} is deleted."
