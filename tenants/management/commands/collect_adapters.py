from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants import adapter_store, uploads
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "Remove from the adapter store what no version refers to any more; Celery does so every hour."
    example = "manage.py collect_adapters --grace-hours 24"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--grace-hours",
            type=float,
            default=adapter_store.GRACE.total_seconds() / 3600,
            help="how long something has to be unused (default: %(default)g); running requests may still need it",
        )

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if not 0 <= options["grace_hours"] <= 24 * 365:
            raise CommandError("--grace-hours has to be between 0 and 8760.")
        return {
            "expired_uploads": uploads.expire(),
            **adapter_store.collect(timedelta(hours=options["grace_hours"])),
        }

    def describe(self, result: dict[str, Any]) -> str:
        return (
            f"Removed {result['contents']} contents of {result['bytes']} bytes and {result['left_behind']} directories "
            f"that were left behind; {result['expired_uploads']} uploads have expired."
        )
