from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import key_ring
from tenants.callers import caller_of_command
from tenants.management import ring
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.restrictions import names_of_all


class Command(JsonCommand):
    help = "A tenant's keys, newest first: whose they are, what they may do and when they were last used."
    example = "manage.py keys acme --all"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--all", action="store_true", help="also revoked and expired ones")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        found = key_ring.reachable(caller_of_command(tenant)).order_by("-pk")
        keys = [key for key in found if options["all"] or key.state == "active"]
        described = [ring.described(key, names) for key, names in zip(keys, names_of_all(keys), strict=True)]
        return {"tenant": tenant.slug, "keys": described}

    def describe(self, result: dict[str, Any]) -> str:
        return "\n".join(ring.line(key) for key in result["keys"]) or f"{result['tenant']} has no keys."
