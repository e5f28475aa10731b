from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import upload_files
from tenants.counted import counted
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import AdapterUpload


class Command(JsonCommand):
    help = "The adapter uploads of a tenant, newest first: how far each is, and the version that it became."
    example = "manage.py uploads acme --open"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--open", action="store_true", help="only those that have not ended")
        parser.add_argument("--limit", type=int, default=100, metavar="N", help="at most (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        if not 1 <= options["limit"] <= 10_000:
            raise CommandError("--limit has to be between 1 and 10000.")
        found = tenant.adapter_uploads.select_related("base_model", "version").order_by("-pk")
        if options["open"]:
            found = found.filter(state=AdapterUpload.State.OPEN)
        return {"tenant": tenant.slug, "uploads": [_row(upload) for upload in found[: options["limit"]]]}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{result['tenant']}: {counted(len(result['uploads']), 'upload')}."]
        for row in result["uploads"]:
            became = "" if row["version"] is None else f", v{row['version']}"
            came = f"{row['received']} of {row['bytes']} bytes, " if row["state"] == AdapterUpload.State.OPEN else ""
            lines.append(f"{row['id']}  {row['state']:<9}  {row['adapter']}{became}: {came}since {row['created_at']}")
        return "\n".join(lines)


def _row(upload: AdapterUpload) -> dict[str, Any]:
    return {
        "id": str(upload.pk),
        "adapter": upload.name,
        "base_model": upload.base_model.name,
        "state": upload.state,
        "bytes": upload.num_bytes,
        "received": sum(upload_files.received(upload).values()),
        "version": None if upload.version is None else upload.version.number,
        "created_at": upload.created_at.isoformat(),
        "expires_at": upload.expires_at.isoformat(),
    }
