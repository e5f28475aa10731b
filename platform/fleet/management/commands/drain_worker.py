from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from fleet import registry
from fleet.models import Worker
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Let a worker finish what it runs and give it nothing new; --undo gives it requests again."
    example = "manage.py drain_worker w1"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "worker", "its name, as workers lists it")
        parser.add_argument("--undo", action="store_true", help="give it requests again")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        worker = registry.find(subject(options, "worker"))
        registry.set_state(of_command(), worker, Worker.State.ACTIVE if options["undo"] else Worker.State.DRAINING)
        return {"name": worker.name, "state": worker.state}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Worker {result['name']} is {result['state']}."
