"""Whose limits a command is about, and how limits are written on the command line."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenants.management.command import add_subject, find_key, find_member, find_tenant, subject
from tenants.models import Adapter, ApiKey, BaseModel, Limits, Member, Plan, Tenant
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
            return f"key:{self.key.pk}"
        return "tenant" if self.member is None else f"member:{self.member.pk}"


def add_bound(parser: CommandParser) -> None:
    add_subject(parser, "tenant", "the tenant's short name")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--key", metavar="PUBLIC_ID", help="of this key instead of the whole tenant")
    whose.add_argument("--member", metavar="USERNAME", help="of this member, all keys together")


def bound(options: dict[str, Any]) -> Bound:
    tenant = find_tenant(subject(options, "tenant"))
    if options["key"]:
        return Bound(tenant, key=find_key(tenant, options["key"]))
    if options["member"]:
        return Bound(tenant, member=find_member(tenant, options["member"]))
    return Bound(tenant)


def add_limits(parser: CommandParser, names: tuple[str, ...] = Limits.NAMES) -> None:
    """One flag a limit; read what was given with :func:`given_limits`."""
    for name in names:
        text = str(Tenant._meta.get_field(name).help_text)  # type: ignore[union-attr]
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=_value_of(name), default=SUPPRESS, metavar="N", help=f"{text}; none: no own one")


def given_limits(options: dict[str, Any], names: tuple[str, ...] = Limits.NAMES) -> dict[str, int | None]:
    return {name: options[name] for name in names if name in options}


def flags(names: tuple[str, ...]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _value_of(name: str) -> Callable[[str], int | None]:
    least = 0 if name.startswith("budget") else 1
    most = _SMALL if name.startswith("max_") or name.endswith("_minute") else MOST

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


def restrict(holder: Member | ApiKey, tenant: Tenant, names: str) -> list[str]:
    """Set which models the holder may use: ``all``, or names as in ``model``, separated by commas. Not saved."""
    if names == "all":
        holder.only_models = holder.only_adapters = None
        return ["only_models", "only_adapters"]
    bases: list[int] = []
    adapters: list[int] = []
    wanted = [part.strip() for part in names.split(",") if part.strip()]
    if not wanted:
        raise CommandError("--models names no model; say all to lift the restriction.")
    for name in wanted:
        owner, slash, short = name.partition("/")
        found: Any
        if slash:
            found = Adapter.objects.filter(tenant__slug=owner, name=short).first()
            usable = found and (found.tenant_id == tenant.pk or found.allowances.filter(tenant=tenant).exists())
            into = adapters
        else:
            found = BaseModel.objects.filter(name=name).first()
            usable = found and found.allowances.filter(tenant=tenant).exists()
            into = bases
        if not usable:
            raise CommandError(f"{tenant} has no model {name!r}; to lift the restriction say --models all.")
        into.append(found.pk)
    holder.only_models, holder.only_adapters = bases, adapters
    return ["only_models", "only_adapters"]


def restriction(holder: Member | ApiKey) -> list[str] | None:
    """Names of the models that the holder is restricted to; ``None``: not restricted.

    A model whose row is gone has no name and is left out: nobody can use it.
    """
    if holder.only_models is None and holder.only_adapters is None:
        return None
    bases = BaseModel.objects.filter(pk__in=holder.only_models or ()).values_list("name", flat=True)
    adapters = Adapter.objects.unscoped().filter(pk__in=holder.only_adapters or ()).select_related("tenant")
    return sorted(bases) + sorted(str(adapter) for adapter in adapters)


def check_budgets(row: Tenant | Member | ApiKey | Plan, changed: Iterable[str]) -> None:
    """Raises ``CommandError`` where a change leaves a soft budget that the hard one keeps from being reached."""
    limits = row.effective_limits() if isinstance(row, Tenant) else row.own_limits()
    soft, hard = limits["budget_soft"], limits["budget_hard"]
    if {"budget_soft", "budget_hard", "plan"}.isdisjoint(changed) or soft is None or hard is None:
        return
    if soft > hard:
        raise CommandError(f"--budget-soft would be {soft}: above --budget-hard, {hard}, it is never reached.")


def describe_limits(limits: dict[str, int | None], own: dict[str, int | None], elsewhere: str) -> list[str]:
    """Lines for people: each limit and where it comes from."""
    lines = []
    for name, value in limits.items():
        source = "own" if own[name] is not None else elsewhere
        lines.append(f"  {name:<20} {'unlimited' if value is None else value} ({source})")
    return lines
