"""How keys are named and described on the command line."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from tenants.errors import NotConfigured
from tenants.management.command import key_id, named_key
from tenants.models import ApiKey
from tenants.restrictions import names_of_all


def find_any_key(text: str) -> ApiKey:
    """By public id or by the whole key, whosever it is."""
    rows = ApiKey.objects.unscoped().select_related("tenant", "member__user", "predecessor", "successor")
    key: ApiKey | None = rows.filter(public_id=key_id(text)).first()
    if key is None:
        raise NotConfigured(f"There is no key {named_key(text)}; `keys TENANT --all` lists a tenant's.")
    return key


def described(key: ApiKey, models: list[str] | None = None) -> dict[str, Any]:
    """A key as ``--json`` has it. :param models: names that were looked up already."""
    successor: ApiKey | None = getattr(key, "successor", None)
    return {
        "tenant": key.tenant.slug,
        "public_id": key.public_id,
        "name": key.name,
        "scope": key.scope,
        "state": key.state,
        "member": None if key.member is None else key.member.user.get_username(),
        "models": models,
        "addresses": key.allowed_addresses,
        "limits": {name: value for name, value in key.own_limits().items() if value is not None},
        "expires_at": _text(key.expires_at),
        "revoked_at": _text(key.revoked_at),
        "last_used_at": _text(key.last_used_at),
        "predecessor": None if key.predecessor is None else key.predecessor.public_id,
        "successor": None if successor is None else successor.public_id,
    }


def described_again(key: ApiKey) -> dict[str, Any]:
    """The same of the key as it is stored now."""
    key = find_any_key(key.public_id)
    return described(key, names_of_all([key])[0])


def line(result: dict[str, Any]) -> str:
    """One key for people."""
    parts = [f"{result['public_id']}  {result['tenant']:<20} {result['scope']:<9} {result['state']:<8}"]
    for name in ("name", "member", "models", "addresses", "limits", "expires_at", "last_used_at", "successor"):
        value = result[name]
        if isinstance(value, dict):
            value = ", ".join(f"{key} {number}" for key, number in value.items())
        if value:
            parts.append(f"{name.removesuffix('_at')}: {', '.join(value) if isinstance(value, list) else value}")
    return "  ".join(parts)


def add_restrictions(parser: CommandParser) -> None:
    """What :func:`restrictions` reads."""
    parser.add_argument("--models", help="models that it may use, separated by commas; or: all")
    parser.add_argument("--addresses", help="networks that it may be used from, separated by commas; or: all")
    parser.add_argument("--expires-in-days", type=_days, metavar="DAYS", help="when it ends; or: never")


def restrictions(options: dict[str, Any]) -> dict[str, Any]:
    """What was given, under the names of :class:`tenants.key_ring.Wanted`."""
    found: dict[str, Any] = {}
    for option, name in (("models", "models"), ("addresses", "networks")):
        if options[option] is not None:
            found[name] = _listed(option, options[option])
    days = options["expires_in_days"]
    if days is not None:
        found["expires_at"] = None if days == 0 else timezone.now() + timedelta(days=days)
    return found


def _listed(option: str, text: str) -> list[str] | None:
    if text == "all":
        return None
    if option == "addresses" and text.strip().lower() in ("none", "any"):
        raise CommandError(f"--addresses: {text[:50]!r} is no address or network; say all to lift the restriction.")
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise CommandError(f"--{option} names nothing; say all to lift the restriction.")
    return names


def _days(text: str) -> int:
    """0 is never."""
    if text == "never":
        return 0
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 36500:
        raise ArgumentTypeError("has to be between 1 and 36500, or never")
    return int(text)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
