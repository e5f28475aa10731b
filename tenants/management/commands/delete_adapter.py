from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import adapters
from tenants.actors import of_command
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "Delete an adapter, or one of its versions, unless something refers to it; the ledger keeps its entries."
    example = "manage.py delete_adapter acme/pirate --number 2"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--number", type=int, help="only this version")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, name = adapter_name(options)
        if options["number"] is None:
            adapters.delete(of_command(), tenant, name)
        else:
            adapters.delete_version(of_command(), tenant, name, options["number"])
        return {"adapter": f"{tenant}/{name}", "version": options["number"], "deleted": True}

    def describe(self, result: dict[str, Any]) -> str:
        version = "" if result["version"] is None else f" v{result['version']}"
        return f"{result['adapter']}{version} is deleted."
