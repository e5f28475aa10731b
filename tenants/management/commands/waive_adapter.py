from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import activation
from tenants.actors import of_command
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = (
        "Let an adapter version through that waits for its trial at a worker, or that failed it. "
        "With --again it is tried once more instead."
    )
    example = 'manage.py waive_adapter acme/pirate --number 3 --reason "only the style changes"'

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--number", type=int, required=True, help="the version")
        how = parser.add_mutually_exclusive_group(required=True)
        how.add_argument("--reason", help="for the audit log")
        how.add_argument("--again", action="store_true", help="queue another trial")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        (tenant, name), actor = adapter_name(options), of_command()
        number = options["number"]
        if options["again"]:
            version = activation.try_again(actor, tenant, name, number)
        else:
            version = activation.waive(actor, tenant, name, number, options["reason"])
        return {"adapter": str(version.adapter), "version": version.number, "state": version.state}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['adapter']} v{result['version']} is {result['state']}."
