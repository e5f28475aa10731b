from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from tenants.management.command import JsonCommand, find_base_model
from tenants.models import Price


class Command(JsonCommand):
    help = "List prices, newest first: micro-units per million tokens. The first that is valid for a plan is in force."
    example = "manage.py prices --model smollm2-135m-instruct"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--model", help="only of this base model")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        prices = Price.objects.select_related("base_model", "plan").order_by("base_model__name", "plan", "-valid_from")
        if options["model"]:
            prices = prices.filter(base_model=find_base_model(options["model"]))
        now = timezone.now()
        found: set[tuple[int, int | None]] = set()
        rows = []
        for price in prices:
            group = (price.base_model_id, price.plan_id)
            in_force = price.valid_from <= now and group not in found
            if in_force:
                found.add(group)
            rows.append(
                {
                    "model": price.base_model.name,
                    "plan": price.plan and price.plan.name,
                    "input": price.input,
                    "cached_input": price.cached_input,
                    "output": price.output,
                    "valid_from": price.valid_from.isoformat(),
                    "in_force": in_force,
                }
            )
        return {"prices": rows}

    def describe(self, result: dict[str, Any]) -> str:
        if not result["prices"]:
            return "No prices: nothing is charged (set_price)."
        lines = [f"  {'model':<32} {'plan':<12} {'input':>12} {'cached':>12} {'output':>12}  from"]
        for row in result["prices"]:
            lines.append(
                f"{'*' if row['in_force'] else ' '} {row['model']:<32} {row['plan'] or '':<12} {row['input']:>12}"
                f" {row['cached_input']:>12} {row['output']:>12}  {row['valid_from']}"
            )
        return "\n".join(lines)
