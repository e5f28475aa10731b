from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import base_models
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_base_model, subject
from tenants.models import BaseModel


class Command(JsonCommand):
    help = "Have nobody use a base model, nor adapters on it, from the next request on; --undo takes it up again."
    example = "manage.py retire_model smollm2-135m-instruct"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "model", "the base model's name")
        parser.add_argument("--undo", action="store_true", help="take it up again")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        model = find_base_model(subject(options, "model"))
        state = BaseModel.State.ACTIVE if options["undo"] else BaseModel.State.RETIRED
        base_models.set_state(of_command(), model, state)
        return {"model": model.name, "state": model.state}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['model']} is {result['state']}."
