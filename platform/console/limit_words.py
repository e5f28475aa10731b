"""Limits as people read them: a title, and values with their unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from console.templatetags.console import money, number, size
from tenants import adapter_quotas
from tenants.models import Tenant


class Kind(Enum):
    COUNT = "count"
    MONEY = "money"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Word:
    """:param unit: of a count: ``requests``; ``""`` where the title says it."""

    title: str
    kind: Kind = Kind.COUNT
    unit: str = ""

    def text(self, value: int | None) -> str:
        """A value with its unit: ``600 requests``, ``12.50 USD``, ``21.5 GB``."""
        if value is None:
            return number(None)
        shown = _SHOWN[self.kind](value)
        return f"{shown} {self.unit}" if self.unit else shown


_SHOWN: dict[Kind, Callable[[int], str]] = {Kind.COUNT: number, Kind.MONEY: money, Kind.SIZE: size}

WORDS = {
    "requests_per_minute": Word("Requests per minute"),
    "tokens_per_minute": Word("Tokens per minute"),
    "max_concurrent": Word("Requests at once"),
    "tokens_per_day": Word("Tokens per day (UTC)"),
    "tokens_per_month": Word("Tokens per month (UTC)"),
    "budget_soft": Word("Budget that warns, per month (UTC)", Kind.MONEY),
    "budget_hard": Word("Budget that stops, per month (UTC)", Kind.MONEY),
    "max_input_tokens": Word("Prompt tokens of one request"),
    "max_output_tokens": Word("Generated tokens of one request"),
    "max_adapters": Word("Adapters"),
    "max_adapter_versions": Word("Versions of adapters"),
    "max_adapter_bytes": Word("Size of all adapters", Kind.SIZE),
}
"""By the limit's name: :data:`tenants.models.Limits.NAMES`, and the quotas on adapters."""


@dataclass(frozen=True, slots=True)
class Row:
    """A limit in force. ``used`` and ``left`` are ``""`` for the limits of a single request.

    :param source: whose limit it is: ``own``, ``plan``; ``""`` where there is only one.
    :param share: of a hundred, how much is used; ``None`` as for ``used``.
    """

    title: str
    limit: str
    used: str
    left: str
    share: int | None
    source: str


def quotas(tenant: Tenant) -> list[Row]:
    """Of the quotas on adapters; also of those without limit."""
    used = adapter_quotas.used(tenant)
    now = {"max_adapters": used.adapters, "max_adapter_versions": used.versions, "max_adapter_bytes": used.bytes}
    found = []
    for name, limit in adapter_quotas.limits(tenant).items():
        at = {"limit": limit, "used": now[name], "left": None if limit is None else max(limit - now[name], 0)}
        found.append(row(name, at, "plan" if getattr(tenant, name) is None else "own"))
    return found


def row(name: str, at: dict[str, Any], source: str = "") -> Row:
    """:param at: ``limit`` and, where it can be used up, ``used``, ``left``, as :func:`tenants.standing.standing`."""
    word, limit, used = WORDS[name], at["limit"], at.get("used")
    if limit is None:
        return Row(word.title, "no limit", word.text(used), "", None, "")
    if used is None:
        return Row(word.title, word.text(limit), "", "", None, source)
    share = 100 if used >= limit else used * 100 // limit
    return Row(word.title, word.text(limit), word.text(used), word.text(at["left"]), share, source)
