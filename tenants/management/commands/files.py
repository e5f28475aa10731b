from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants.counted import counted
from tenants.files import shown
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import File


class Command(JsonCommand):
    help = "The files of a tenant: what its batches read and wrote, newest first."
    example = "manage.py files acme --json"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = find_tenant(subject(options, "tenant"))
        rows = [
            {"id": file.pk, **shown(file), "expires_at": file.expires_at.isoformat()}
            for file in File.objects.filter(tenant=tenant).order_by("-pk")
        ]
        return {"tenant": tenant.slug, "bytes": sum(row["bytes"] for row in rows), "files": rows}

    def describe(self, result: dict[str, Any]) -> str:
        lines = [f"{result['tenant']} has {counted(len(result['files']), 'file')} of {result['bytes']} bytes together."]
        for row in result["files"]:
            lines.append(
                f"{row['id']}  {row['bytes']:>12}  {row['purpose']:<12}  until {row['expires_at']}  {row['filename']}"
            )
        return "\n".join(lines)
