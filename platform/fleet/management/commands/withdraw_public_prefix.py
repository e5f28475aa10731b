from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from fleet import public_prefixes
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Have tenants' prompts share a public prefix no longer; workers hear of it within seconds."
    example = "manage.py withdraw_public_prefix support"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "name", "its name, as public_prefixes lists it")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        prefix = public_prefixes.find(subject(options, "name"))
        public_prefixes.withdraw(of_command(), prefix)
        return {"name": prefix.name, "withdrawn": True}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['name']} is no longer public."
