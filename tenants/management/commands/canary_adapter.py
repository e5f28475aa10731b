from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import releases
from tenants.actors import of_command
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand
from tenants.management.released import describe_release, shown_release


class Command(JsonCommand):
    help = "Give a share of an adapter's requests to another version of it; --percent 0 ends that."
    example = "manage.py canary_adapter acme/pirate --number 4 --percent 10"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--number", type=int, required=True, help="the version to try")
        parser.add_argument("--percent", type=int, required=True, help="0 to 100, of the requests or users")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, name = adapter_name(options)
        release = releases.set_canary(of_command(), tenant, name, options["number"], options["percent"])
        return shown_release(release)

    def describe(self, result: dict[str, Any]) -> str:
        return describe_release(result)
