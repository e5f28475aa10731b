from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import releases
from tenants.actors import of_command
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand
from tenants.management.released import describe_release, shown_release


class Command(JsonCommand):
    help = "Take an adapter back to the release before: from a canary to what ran beside it, else to what ran earlier."
    example = "manage.py rollback_adapter acme/pirate"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        return shown_release(releases.rollback(of_command(), *adapter_name(options)))

    def describe(self, result: dict[str, Any]) -> str:
        return describe_release(result)
