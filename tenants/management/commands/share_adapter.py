from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from tenants import adapter_shares
from tenants.actors import of_command
from tenants.management.adapter_name import adapter_name, add_adapter_name
from tenants.management.command import JsonCommand, find_tenant


class Command(JsonCommand):
    help = "Share a tenant's adapter with another tenant, for its owner; --withdraw takes the share back."
    example = "manage.py share_adapter acme/pirate --with globex"

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_adapter_name(parser)
        parser.add_argument("--with", required=True, dest="receiver", help="who may use it: a tenant's short name")
        parser.add_argument("--withdraw", action="store_true", help="take the share back")

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        owner, name = adapter_name(options)
        receiver = find_tenant(options["receiver"])
        change = adapter_shares.withdraw if options["withdraw"] else adapter_shares.share
        change(of_command(), owner, name, receiver.pk)
        return {"adapter": f"{owner}/{name}", "tenant": receiver.slug, "shared": not options["withdraw"]}

    def describe(self, result: dict[str, Any]) -> str:
        return f"{result['adapter']} is {'' if result['shared'] else 'no longer '}shared with {result['tenant']}."
