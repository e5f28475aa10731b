from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from tenants import batches
from tenants.actors import of_command
from tenants.callers import caller_of_command
from tenants.files import LONGEST, SHORTEST
from tenants.management.command import JsonCommand, add_subject, find_key, find_tenant, subject


class Command(JsonCommand):
    help = (
        "Answer the requests of a tenant's file, within a day, under one of the tenant's own keys. It is taken up "
        "within seconds; `batches` shows how far it is."
    )
    example = "manage.py create_batch acme --file file-01890000000070008000000000000000 --key 5kQz81LmNb0c"
    called: ClassVar = {"input_file_id": "--file"}

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "the tenant's short name")
        parser.add_argument("--file", required=True, metavar="ID", help="the input's id, as `files` shows it")
        parser.add_argument("--key", required=True, help="public id of the key whose limits and prices it runs under")
        parser.add_argument(
            "--endpoint", choices=batches.ENDPOINTS, default=batches.ENDPOINTS[0], help="default: %(default)s"
        )
        parser.add_argument(
            "--output-expires-in-seconds",
            type=int,
            metavar="N",
            help=f"how long its output files are kept, {SHORTEST} to {LONGEST}; default: 30 days",
        )

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, seconds = find_tenant(subject(options, "tenant")), options["output_expires_in_seconds"]
        if seconds is not None and not SHORTEST <= seconds <= LONGEST:
            raise CommandError(f"--output-expires-in-seconds has to be between {SHORTEST} and {LONGEST}.")
        key = find_key(tenant, options["key"])
        if not batches.keys_for(caller_of_command(tenant)).filter(pk=key.pk).exists():
            raise CommandError(f"--key {key} has to be a working key of scope inference, the account's own.")
        batch = batches.create(
            of_command(), key, input_file_id=options["file"], endpoint=options["endpoint"], output_seconds=seconds
        )
        return {
            "tenant": tenant.slug,
            "id": batch.pk,
            "status": batch.status,
            "endpoint": batch.endpoint,
            "input_file_id": batch.input_file_id,
            "key": key.public_id,
            "expires_at": batch.expires_at.isoformat(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['id']} of {result['tenant']} is {result['status']}; it has time until {result['expires_at']}."
