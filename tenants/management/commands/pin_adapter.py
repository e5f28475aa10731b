from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import releases
from tenants.actors import of_command
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "Keep an adapter loaded on every worker of its base model, as far as their slots go; --off ends that."
    example = "manage.py pin_adapter acme/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--off", action="store_true", help="no longer")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, name = adapter_name(options)
        adapter = releases.set_pinned(of_command(), tenant, name, not options["off"])
        return {"adapter": str(adapter), "pinned": adapter.pinned}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['adapter']} is {'pinned' if result['pinned'] else 'not pinned'}."
