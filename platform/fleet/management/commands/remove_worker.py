from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from fleet import registry
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Have the gateways forget a worker that was drained. Its process is not stopped, what it runs still ends."
    example = "manage.py remove_worker w1"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "worker", "its name, as workers lists it")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        worker = registry.find(subject(options, "worker"))
        registry.remove(of_command(), worker)
        return {"name": worker.name, "removed": True}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Worker {result['name']} is no longer known."
