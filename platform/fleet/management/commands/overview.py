from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from fleet.overview import overview
from tenants.management.command import JsonCommand


class Command(JsonCommand):
    help = "How the platform does: requests, tokens, spending, refusals, latencies of workers, and what needs doing."
    example = "manage.py overview --hours 24"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--hours", type=int, default=24, help="that totals reach back (default: %(default)s)")
        parser.add_argument("--minutes", type=int, default=15, help="that latencies do (default: %(default)s)")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        if not 1 <= options["hours"] <= 24 * 31 or not 1 <= options["minutes"] <= 24 * 60:
            raise CommandError("--hours has to be between 1 and 744, --minutes between 1 and 1440.")
        found: dict[str, Any] = json.loads(
            json.dumps(overview(options["hours"], options["minutes"]), cls=DjangoJSONEncoder)
        )
        return found

    def describe(self, result: dict[str, Any]) -> str:
        totals = result["totals"]
        lines = [
            f"Since {result['since']}: {totals['requests']} requests ({totals['not_completed']} not completed, "
            f"{totals['denied']} refused), {totals['prompt_tokens']} + {totals['completion_tokens']} tokens, "
            f"{totals['cost']} micro-units; {result['running']} running now."
        ]
        for worker in result["workers"]:
            first = worker["first_token"]
            late = "" if first["p50"] is None else f", first token p50 {first['p50']:.3f} s, p99 {first['p99']:.3f} s"
            load = f"{worker['running']} running, {worker['waiting']} waiting"
            lines.append(f"{worker['name']} ({worker['model']}, {worker['state']}): {worker['problem'] or load}{late}")
        lines += [f"! {alert['message']} {alert['action']}" for alert in result["alerts"]]
        return "\n".join(lines)
