from __future__ import annotations

import asyncio
import json
from argparse import ArgumentParser
from typing import Any

import aiohttp
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from fleet.models import Worker
from fleet.router import DIALECTS
from inference.errors import InferenceError
from tenants.models import BaseModel

PATIENCE_SECONDS = 10.0
"""For /health, which may compute a step."""


class Command(BaseCommand):
    help = (
        "Tell the gateways about a worker, or change what they know of it (same --name). A worker that serves other "
        "weights than --model is refused; one that does not answer is registered all the same, with a warning. "
        "Example: manage.py register_worker --name w1 --url http://10.0.0.5:8100 --model smollm2-135m-instruct"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", required=True, help="unique short name (letters, digits, - and _)")
        parser.add_argument("--url", required=True, help="http://host:port of the worker")
        parser.add_argument("--model", required=True, help="registered base model that it serves")
        parser.add_argument("--dialect", default=Worker.Dialect.NATIVE, choices=Worker.Dialect.values)
        parser.add_argument("--state", default=Worker.State.ACTIVE, choices=Worker.State.values)
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, **options: Any) -> None:
        model = BaseModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(f"--model: no base model is registered as {options['model']!r}")
        worker = Worker.objects.filter(name=options["name"]).first() or Worker(name=options["name"])
        created = worker.pk is None
        worker.url = options["url"].rstrip("/")
        worker.base_model, worker.dialect, worker.state = model, options["dialect"], options["state"]
        try:
            worker.full_clean()
        except ValidationError as error:
            field, messages = next(iter(error.message_dict.items()))
            raise CommandError(f"--{field}: {messages[0]}") from None
        fingerprint, problem = asyncio.run(_asked(worker))
        if fingerprint is not None and fingerprint != model.fingerprint:
            raise CommandError(
                f"--model: {worker.url} serves weights with the fingerprint {fingerprint}, but {model.name} is "
                f"registered with {model.fingerprint}; start the worker with --model {model.directory}."
            )
        worker.save()
        if problem is not None:
            self.stderr.write(
                f"Warning: {worker.url} does not serve now, and gets no requests until it does: {problem}."
            )
        if options["json"]:
            report = {
                "name": worker.name,
                "url": worker.url,
                "model": model.name,
                "dialect": worker.dialect,
                "state": worker.state,
                "created": created,
                "problem": problem,
            }
            self.stdout.write(json.dumps(report))
        else:
            verb = "registered" if created else "updated"
            self.stdout.write(f"Worker {worker.name} {verb}: {worker.url}, {model.name}, {worker.state}.")


async def _asked(worker: Worker) -> tuple[str | None, str | None]:
    """The fingerprint of what the worker serves, as far as it says, and why it serves nothing now."""
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await DIALECTS[worker.dialect](worker.url, session).check(), None
        except InferenceError as error:
            return None, str(error).rstrip(".")
        except TimeoutError:
            return None, f"no answer within {PATIENCE_SECONDS:.0f} s"
