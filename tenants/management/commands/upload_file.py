from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from inference.safetensors_header import printable
from tenants import files
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_tenant, subject
from tenants.models import File, Tenant


class Command(JsonCommand):
    help = "Upload a file for a tenant: the input of a batch, one request a line, as JSON."
    example = "manage.py upload_file acme --path requests.jsonl"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--path", required=True, type=Path, help="the file")
        parser.add_argument("--filename", help="what it is called there; default: as here")
        parser.add_argument(
            "--expires-in-seconds",
            type=int,
            metavar="N",
            help=f"how long it is kept, {files.SHORTEST} to {files.LONGEST}; default: {files.KEPT.days} days",
        )

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, seconds = find_tenant(subject(options, "tenant")), options["expires_in_seconds"]
        if seconds is not None and not files.SHORTEST <= seconds <= files.LONGEST:
            raise CommandError(f"--expires-in-seconds has to be between {files.SHORTEST} and {files.LONGEST}.")
        kept = files.seconds_kept(None if seconds is None else "created_at", seconds, "expires_after")
        file = _receive(tenant, options["path"], options["filename"], kept)
        return {"tenant": tenant.slug, "id": file.pk, **files.shown(file), "expires_at": file.expires_at.isoformat()}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['id']} of {result['tenant']}: {result['bytes']} bytes, kept until {result['expires_at']}."


def _receive(tenant: Tenant, source: Path, filename: str | None, kept: timedelta) -> File:
    incoming = files.incoming()
    try:
        _copy(source, incoming)
        name = printable(source.name if filename is None else filename, 255) or "upload.jsonl"
        return files.receive(of_command(), tenant, incoming, name, kept)
    finally:
        incoming.unlink(missing_ok=True)


def _copy(source: Path, incoming: Path) -> None:
    try:
        if source.stat().st_size > settings.MAX_FILE_BYTES:
            raise CommandError(f"--path {source} is larger than {settings.MAX_FILE_BYTES} bytes.")
        shutil.copyfile(source, incoming)
    except (OSError, shutil.SpecialFileError) as error:
        raise CommandError(f"--path {source} cannot be copied: {getattr(error, 'strerror', None) or error}.") from None
