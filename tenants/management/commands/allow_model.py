from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import allowlists
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_base_model, find_tenant, subject


class Command(JsonCommand):
    help = "Let a tenant use a base model, alone and under its adapters; --remove takes that back."
    example = "manage.py allow_model acme --model smollm2-135m-instruct"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "who may use it")
        parser.add_argument("--model", required=True, help="the base model's name")
        parser.add_argument("--remove", action="store_true", help="take the allowance back")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant, model = find_tenant(subject(options, "tenant")), find_base_model(options["model"])
        if options["remove"]:
            allowlists.forbid_model(of_command(), tenant, model)
        else:
            allowlists.allow_model(of_command(), tenant, model)
        return {"tenant": tenant.slug, "model": model.name, "allowed": not options["remove"]}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['tenant']} may {'' if result['allowed'] else 'no longer '}use {result['model']}."
