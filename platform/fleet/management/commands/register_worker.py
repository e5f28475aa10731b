from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from fleet import registry
from fleet.models import Worker
from tenants.actors import of_command
from tenants.errors import Invalid
from tenants.management.command import JsonCommand, add_subject, subject
from tenants.models import BaseModel


class Command(JsonCommand):
    help = (
        "Tell the gateways about a worker, or change what they know of it (same --name). A worker that serves other "
        "weights than --model is refused; one that does not answer is registered all the same, with a warning."
    )
    example = "manage.py register_worker w1 --url http://10.0.0.5:8100 --model smollm2-135m-instruct"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "name", "unique short name (letters, digits, - and _)")
        parser.add_argument("--url", required=True, help="http://host:port of the worker")
        parser.add_argument("--model", required=True, help="registered base model that it serves")
        parser.add_argument("--dialect", default=Worker.Dialect.NATIVE, choices=Worker.Dialect.values)
        parser.add_argument("--state", default=Worker.State.ACTIVE, choices=Worker.State.values)

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        model = BaseModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"--model: no base model is registered as {options['model']!r}")
        try:
            done = registry.register(
                of_command(),
                subject(options, "name"),
                url=options["url"],
                base_model=model,
                dialect=options["dialect"],
                state=options["state"],
            )
        except Invalid as error:
            raise CommandError(f"--{error.param}: {str(error).removeprefix(f'{error.param}: ')}") from None
        worker = done.worker
        if done.problem is not None:
            self.stderr.write(
                f"Warning: {worker.url} does not serve now, and gets no requests until it does: {done.problem}."
            )
        return {
            "name": worker.name,
            "url": worker.url,
            "model": model.name,
            "dialect": worker.dialect,
            "state": worker.state,
            "created": done.created,
            "problem": done.problem,
        }

    def describe(self, result: dict[str, Any]) -> str:
        verb = "registered" if result["created"] else "updated"
        return f"Worker {result['name']} {verb}: {result['url']}, {result['model']}, {result['state']}."
