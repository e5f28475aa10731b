from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from inference.base_shapes import BaseShapes
from inference.model_store import fingerprint_of
from tenants.errors import NotConfigured
from tenants.management.command import JsonCommand
from tenants.models import Adapter, BaseModel


class Command(JsonCommand):
    help = "Register a base model from its model store directory, or bring its row up to date."
    example = "manage.py register_model --directory var/models/smollm2-135m-instruct"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--directory", required=True, type=Path, help="as python -m inference.model_store wrote it")
        parser.add_argument("--name", help="what tenants call; the directory's name if left out")
        parser.add_argument("--context-length", type=int, help="fewer tokens than the model's own context")
        parser.add_argument("--replace", action="store_true", help="other weights under a name that has adapters")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        directory = options["directory"].resolve()
        name = options["name"] or directory.name
        if not (directory / "fingerprint").is_file():
            raise NotConfigured(_unconverted(options["directory"], name))
        fingerprint = fingerprint_of(directory)
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        BaseShapes.from_config(config)
        model = BaseModel.objects.filter(name=name).first() or BaseModel(name=name)
        created = model.pk is None
        if not created and model.fingerprint != fingerprint and not options["replace"]:
            adapters = Adapter.objects.unscoped().filter(base_model=model).count()
            if adapters:
                raise NotConfigured(
                    f"{name} has other weights now; {adapters} adapters were made for the old ones (--replace)."
                )
        model.fingerprint, model.directory, model.config = fingerprint, str(directory), config
        model.context_length = _context_length(config, options["context_length"])
        model.full_clean()
        model.save()
        return {
            "model": model.name,
            "fingerprint": fingerprint,
            "directory": model.directory,
            "context_length": model.context_length,
            "created": created,
        }

    def describe(self, result: dict[str, Any]) -> str:
        what = "Registered" if result["created"] else "Updated"
        return f"{what} {result['model']}: context {result['context_length']}, fingerprint {result['fingerprint']}."


def _unconverted(directory: Path, name: str) -> str:
    """What to do with a directory that is none of the model store's."""
    if not directory.exists():
        return f"--directory {directory} does not exist."
    out = settings.MODEL_STORE / name
    return (
        f"--directory {directory} is not a registered model: it holds no fingerprint. "
        f"Convert it with `python -m inference.model_store {directory} {out}` and give {out}."
    )


def _context_length(config: dict[str, Any], wanted: int | None) -> int:
    own = config.get("max_position_embeddings")
    if type(own) is not int or own < 2:
        raise NotConfigured("config.json: max_position_embeddings has to be a whole number from 2")
    if wanted is not None and not 2 <= wanted <= own:
        raise NotConfigured(f"--context-length has to be between 2 and the model's own {own}")
    return wanted or own
