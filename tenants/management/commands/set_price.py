from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.dateparse import parse_datetime

from tenants import pricing
from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, find_base_model, find_plan, subject


class Command(JsonCommand):
    help = (
        "Set what a base model costs from now (or --from) on, alone and under adapters, in micro-units per million "
        "tokens. Requests that run are charged at the price they were admitted at."
    )
    example = "manage.py set_price smollm2-135m-instruct --input 150000 --cached-input 75000 --output 600000"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "model", "the base model's name")
        parser.add_argument("--input", type=int, required=True, metavar="N", help="per million prompt tokens")
        parser.add_argument("--cached-input", type=int, metavar="N", help="per million cached ones (default: --input)")
        parser.add_argument("--output", type=int, required=True, metavar="N", help="per million generated tokens")
        parser.add_argument("--plan", help="only for tenants on this plan; goes before the general price")
        parser.add_argument("--from", dest="valid_from", metavar="TIME", help="ISO 8601 with a zone; default: now")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        model = find_base_model(subject(options, "model"))
        price = pricing.set_price(
            of_command(),
            model,
            input=options["input"],
            cached_input=options["cached_input"],
            output=options["output"],
            plan=find_plan(options["plan"]) if options["plan"] else None,
            valid_from=_time(options["valid_from"]) if options["valid_from"] else None,
        )
        return {
            "model": model.name,
            "plan": price.plan and price.plan.name,
            "input": price.input,
            "cached_input": price.cached_input,
            "output": price.output,
            "valid_from": price.valid_from.isoformat(),
        }

    def describe(self, result: dict[str, Any]) -> str:
        plan = f" on plan {result['plan']}" if result["plan"] else ""
        numbers = f"{result['input']} / {result['cached_input']} / {result['output']}"
        return (
            f"{result['model']}{plan} costs {numbers} micro-units "
            f"per million prompt / cached / generated tokens from {result['valid_from']} on."
        )


def _time(text: str) -> Any:
    try:
        parsed = parse_datetime(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise CommandError("--from has to be a time with a zone, such as 2030-01-01T00:00:00Z.")
    return parsed
