from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from tenants import uploads
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Give an open adapter upload of a tenant up; what was sent of it goes."
    example = "manage.py cancel_upload acme --upload 01890000-0000-7000-8000-000000000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--upload", required=True, type=UUID, metavar="ID", help="its id, as `uploads` shows it")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        uploads.cancel(of_command(), tenant, options["upload"])
        return {"tenant": tenant.slug, "id": str(options["upload"]), "cancelled": True}

    def describe(self, result: dict[str, Any]) -> str:
        return f"The upload {result['id']} of {result['tenant']} is cancelled."
