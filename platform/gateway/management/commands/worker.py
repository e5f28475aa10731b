from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gateway import installation
from gateway.installation import CannotStart
from inference.errors import InferenceError
from inference.fetch_model import fetch


class Command(BaseCommand):
    help = (
        "Run one worker in the foreground; register it with register_worker. "
        "Example: manage.py worker --model var/models/smollm2-135m-instruct --port 8100"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--model", type=Path, help="model store directory; default: the base model of the settings")
        parser.add_argument("--json", action="store_true", help="say when it serves as one JSON object")
        parser.add_argument("--port", type=int, help="default: LORAPLEX_WORKER_PORT, else a free one")

    def handle(self, **options: Any) -> None:
        port = options["port"] or settings.WORKER_PORT or installation.free_port()
        try:
            installation.check_packages("torch", "transformers", "safetensors")
            installation.check_port(installation.LOOPBACK, port)
            model_dir = options["model"] or fetch(
                store=settings.MODEL_STORE,
                downloads=settings.DOWNLOAD_DIR,
                source=settings.BASE_MODEL,
                say=self.stderr.write if options["json"] else self.stdout.write,
            )
        except (CannotStart, InferenceError) as error:
            raise CommandError(str(error)) from None
        command = installation.worker_command(Path(model_dir).resolve(), port)
        if options["json"]:
            command.append("--json")
        os.execve(command[0], command, installation.environment())  # noqa: S606 - one process, one set of signals
