from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from tenants import base_models
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, subject


class Command(JsonCommand):
    help = "Register a base model from its model store directory, or bring its row up to date."
    example = "manage.py register_model var/models/smollm2-135m-instruct"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "directory", "as python -m inference.model_store wrote it")
        parser.add_argument("--name", help="what tenants call; the directory's name if left out")
        parser.add_argument(
            "--context-length",
            type=int,
            help="fewer tokens than the model's own context; stays so until it is said again",
        )
        parser.add_argument("--replace", action="store_true", help="other weights under a name that has adapters")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        directory = Path(subject(options, "directory"))
        model, created = base_models.register(
            of_command(),
            directory,
            name=options["name"] or directory.resolve().name,
            context_length=options["context_length"],
            replace=options["replace"],
        )
        return {
            "model": model.name,
            "fingerprint": model.fingerprint,
            "directory": model.directory,
            "context_length": model.context_length,
            "created": created,
        }

    def describe(self, result: dict[str, Any]) -> str:
        what = "Registered" if result["created"] else "Updated"
        return f"{what} {result['model']}: context {result['context_length']}, fingerprint {result['fingerprint']}."
