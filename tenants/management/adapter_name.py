"""``tenant/adapter`` as a command's argument."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.management.command import add_subject, find_tenant
from tenants.models import Tenant


def add_adapter_name(parser: CommandParser) -> None:
    """By position or as ``--adapter``, ``tenant/name``; or in two parts. Read it with :func:`adapter_name`."""
    add_subject(parser, "adapter", "the adapter, as tenant/name")
    parser.add_argument("--tenant", help="the tenant's short name, where the adapter's name stands alone")
    parser.add_argument("--name", help="the adapter's name, beside --tenant")


def adapter_name(options: dict[str, Any]) -> tuple[Tenant, str]:
    """Whose it is, and its name; whether there is one by it is not looked at."""
    owner = options["tenant"]
    given = [options[part] for part in ("adapter_by_position", "adapter", "name") if options[part]]
    whole = {f"{owner}/{text}" if owner and "/" not in text else text for text in given}
    if len(whole) != 1:
        raise CommandError("Two different adapters." if whole else "Say the adapter, as tenant/name.")
    slug, slash, name = whole.pop().partition("/")
    if not slash:
        raise CommandError(f"Write the adapter as tenant/name; {slug!r} does not say whose it is.")
    if owner and owner != slug:
        raise CommandError(f"Two different tenants: {owner} and {slug}.")
    return find_tenant(slug), name
