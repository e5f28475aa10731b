from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from tenants.actors import of_command
from tenants.management.command import JsonCommand, add_subject, only_tenant
from tenants.models import Tenant
from tenants.reconciliation import reconcile, repair


class Command(JsonCommand):
    help = (
        "Prove that everything adds up: each account equals the sum of its ledger and holds, each finished request has "
        "exactly one entry, each cost follows from its price, roll-ups equal the ledger. Exit status 1 if not."
    )
    example = "manage.py reconcile acme"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_subject(parser, "tenant", "only this one; default: everybody")
        parser.add_argument(
            "--repair", action="store_true", help="set accounts to what ledger and running requests say, then look"
        )

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        tenant = only_tenant(options)
        if options["repair"]:
            for each in [tenant] if tenant else Tenant.objects.all():
                repair(of_command(), each)
        found = reconcile(tenant)
        return {"ok": found.ok, **asdict(found)}

    def describe(self, result: dict[str, Any]) -> str:
        head = (
            f"{result['requests']} requests: {result['entries']} in the ledger, {result['running']} running; "
            f"{result['prompt_tokens']} + {result['completion_tokens']} tokens, {result['cost']} micro-units."
        )
        lines = [f"{row['check']}: {row['tenant']} {row['about']}: {row['found']}" for row in result["findings"]]
        return "\n".join([head, *lines, *(["Everything adds up."] if result["ok"] else [])])

    def problem(self, result: dict[str, Any]) -> str | None:
        return None if result["ok"] else "The books do not add up."
