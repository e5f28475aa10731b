from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from tenants import key_ring
from tenants.callers import caller_of_command
from tenants.management import ring
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = (
        "Issue a key's successor, which shares its limits and counters. The old key works on for a while. The new one "
        "is shown once and cannot be read again."
    )
    example = "manage.py rotate_key 5kQz81LmNb0c --overlap-hours 2"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "key", "the key's public id (between the underscores), or the whole key")
        hours = key_ring.OVERLAP.total_seconds() / 3600
        parser.add_argument(
            "--overlap-hours",
            type=float,
            default=hours,
            metavar="HOURS",
            help=f"how long the old key still works, up to 720; 0 revokes it at once; default: {hours:g}",
        )

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        key = ring.find_any_key(subject(options, "key"))
        overlap = timedelta(hours=min(max(-1.0, options["overlap_hours"]), 1e6))  # nan becomes -1
        made, secret = key_ring.rotate(caller_of_command(key.tenant), key, overlap=overlap)
        until = ring.described_again(key)["expires_at"] if overlap else None
        return ring.described_again(made) | {"api_key": secret.reveal(), "predecessor_until": until}

    def describe(self, result: dict[str, Any]) -> str:
        until = result["predecessor_until"]
        old = f"works until {until}" if until else "is revoked"
        return (
            f"{result['api_key']}\nKey {result['public_id']} of {result['tenant']}. Shown only now. "
            f"Its predecessor {result['predecessor']} {old}."
        )
