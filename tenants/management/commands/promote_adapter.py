from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import releases
from tenants.actors import of_command
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand
from tenants.management.released import describe_release, shown_release


class Command(JsonCommand):
    help = (
        "Let an adapter's name stand for one version; without --number, for the canary. --automatic off keeps new "
        "versions from being promoted by themselves."
    )
    example = "manage.py promote_adapter acme/pirate --number 3"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--number", type=int, help="the version; left out: the canary's")
        parser.add_argument("--automatic", choices=("on", "off"), help="only say whether new versions are promoted")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        (tenant, name), actor = adapter_name(options), of_command()
        if options["automatic"] is None:
            return shown_release(releases.promote(actor, tenant, name, options["number"]))
        adapter = releases.set_automatic(actor, tenant, name, options["automatic"] == "on")
        return {"adapter": str(adapter), "auto_promote": adapter.auto_promote}

    def describe(self, result: dict[str, Any]) -> str:
        if "auto_promote" in result:
            word = "by themselves" if result["auto_promote"] else "only when told to"
            return f"New versions of {result['adapter']} are promoted {word}."
        return describe_release(result)
