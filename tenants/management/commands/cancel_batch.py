from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import batches
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject


class Command(JsonCommand):
    help = "Stop a tenant's batch: within seconds nothing of it runs; what is done is delivered."
    example = "manage.py cancel_batch acme --batch batch_01890000000070008000000000000000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--batch", required=True, metavar="ID", help="the batch's id, as `batches` shows it")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        batch = batches.cancel(of_command(), tenant, options["batch"])
        return {"tenant": tenant.slug, "id": batch.pk, "status": batch.status}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['id']} of {result['tenant']} is {result['status']}."
