"""Whose limits a command is about, and how limits are written on the command line."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandParser

from tenants import key_ring
from tenants.actors import of_command
from tenants.callers import caller_of_command
from tenants.limits import names_for, set_limits
from tenants.management.command import add_subject, find_key, find_member, find_tenant, subject
from tenants.models import ApiKey, Limits, Member, Tenant
from tenants.models.limits import MOST

_SMALL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Bound:
    """A tenant, or one of its members or keys: whoever the limits bind."""

    tenant: Tenant
    member: Member | None = None
    key: ApiKey | None = None

    @property
    def row(self) -> Tenant | Member | ApiKey:
        return self.key or self.member or self.tenant

    @property
    def name(self) -> str:
        if self.key is not None:
            return f"key {self.key.public_id} of {self.tenant}"
        return f"member {self.member.user} of {self.tenant}" if self.member is not None else self.tenant.slug

    @property
    def subject(self) -> str:
        """As accounts call it."""
        if self.key is not None:
            return f"key:{self.key.line}"
        return "tenant" if self.member is None else f"member:{self.member.pk}"


def add_bound(parser: CommandParser) -> None:
    add_subject(parser, "tenant", "the tenant's short name")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "--key",
        metavar="PUBLIC_ID",
        help="of this key instead of the whole tenant; its public id, as keys lists it, or the whole key",
    )
    whose.add_argument("--member", metavar="USERNAME", help="of this member, all keys together")


def bound(options: dict[str, Any]) -> Bound:
    tenant = find_tenant(subject(options, "tenant"))
    if options["key"]:
        return Bound(tenant, key=find_key(tenant, options["key"]))
    if options["member"]:
        return Bound(tenant, member=find_member(tenant, options["member"]))
    return Bound(tenant)


def add_limits(parser: CommandParser, names: tuple[str, ...] = names_for(Tenant)) -> None:
    """One flag a limit; read what was given with :func:`given_limits`."""
    for name in names:
        text = str(Tenant._meta.get_field(name).help_text)  # type: ignore[union-attr]
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=_value_of(name), default=SUPPRESS, metavar="N", help=f"{text}; none: no own one")


def given_limits(options: dict[str, Any], names: tuple[str, ...] = names_for(Tenant)) -> dict[str, int | None]:
    return {name: options[name] for name in names if name in options}


def change(whose: Bound, limits: dict[str, int | None]) -> None:
    """Set limits of whoever they bind. A key's hold for its whole line, so they change where keys change."""
    if whose.key is not None:
        key_ring.change(caller_of_command(whose.tenant), whose.key, limits=limits)
    else:
        set_limits(of_command(), whose.row, limits)


def flags(names: tuple[str, ...]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _value_of(name: str) -> Callable[[str], int | None]:
    least = 1 if name in Limits.NAMES and not name.startswith("budget") else 0
    most = _SMALL if (name in Limits.NAMES and name.startswith("max_")) or name.endswith("_minute") else MOST

    def limit(text: str) -> int | None:
        if text.lower() == "none":
            return None
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"has to be a whole number, or none; not {text!r}") from None
        if not least <= value <= most:
            raise ArgumentTypeError(f"has to be between {least} and {most}, or none")
        return value

    return limit


def describe_limits(limits: dict[str, int | None], own: dict[str, int | None], elsewhere: str) -> list[str]:
    """Lines for people: each limit and where it comes from."""
    lines = []
    for name, value in limits.items():
        source = "own" if own[name] is not None else elsewhere
        lines.append(f"  {name:<20} {'unlimited' if value is None else value} ({source})")
    return lines
