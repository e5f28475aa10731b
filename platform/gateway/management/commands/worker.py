from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gateway import installation
from gateway.config.parse import OURS
from gateway.installation import CannotStart
from inference import options
from inference.config import WorkerConfig
from inference.errors import InferenceError
from inference.fetch_model import fetch


class Command(BaseCommand):
    help = (
        "Run one worker in the foreground; register it with register_worker. It takes every option of a worker; they "
        "win over those of the settings. "
        "Example: manage.py worker --model var/models/smollm2-135m-instruct --port 8100 --weights int8"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--model", type=Path, help="model store directory; default: the base model of the settings")
        parser.add_argument("--json", action="store_true", help="say when it serves as one JSON object")
        parser.add_argument("--port", type=int, help="default: LORAPLEX_WORKER_PORT, else a free one")
        group = parser.add_argument_group("the worker's own options")
        options.add_options(group, WorkerConfig, without=(*OURS, "port"), only_given=True)

    def handle(self, **given: Any) -> None:
        wanted = given["port"] if given["port"] is not None else settings.WORKER_PORT
        port = installation.free_port() if wanted in (None, 0) else wanted
        try:
            installation.check_packages("torch", "transformers", "safetensors")
            options.check_ranges(WorkerConfig, given | {"port": port})
            installation.check_port(given.get("host", installation.LOOPBACK), port)
            model_dir = given["model"] or fetch(
                store=settings.MODEL_STORE,
                downloads=settings.DOWNLOAD_DIR,
                source=settings.BASE_MODEL,
                say=self.stderr.write if given["json"] else self.stdout.write,
            )
        except (CannotStart, InferenceError) as error:
            raise CommandError(str(error)) from None
        own = {name: value for name, value in given.items() if name not in (*OURS, "port")}
        command = installation.worker_command(Path(model_dir).resolve(), port, options.arguments(WorkerConfig, own))
        if given["json"]:
            command.append("--json")
        os.execve(command[0], command, installation.environment())  # noqa: S606 - one process, one set of signals
