from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import files
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Delete a file of a tenant, unless an unfinished batch reads it."
    example = "manage.py delete_file acme --file file-01890000000070008000000000000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--file", required=True, metavar="ID", help="the file's id, as `files` shows it")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        file = files.find(tenant, options["file"])
        files.delete(of_command(), file)
        return {"tenant": tenant.slug, "id": options["file"], "deleted": True}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['id']} of {result['tenant']} is deleted."
