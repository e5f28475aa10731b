"""Values as the audit log keeps them, as people read them: what a number or a text is, its field's name says."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html_join

from console.templatetags.console import money, number, size, when

register = template.Library()

_MONEY = {"budget_soft", "budget_hard", "held_cost", "cost", "input", "cached_input", "output"}
"""Micro-units, prices per million tokens included."""

_TIME_ENDINGS = ("_at", "_until", "_from")


@register.filter
def in_words(value: Any, name: str) -> str:
    """``5.00 USD`` for ``budget_hard``, ``300.0 MB`` for ``bytes``, a time in the reader's zone for ``expires_at``.

    What does not look like what its name promises stays as it is.
    """
    match value:
        case None | "" | [] | {}:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _counted(name, value)
        case str() if name.endswith(_TIME_ENDINGS):
            return _time(value)
        case list() | dict():
            return _several(name, value)
    return str(value)


def _several(name: str, values: list[Any] | dict[str, Any]) -> str:
    if isinstance(values, list):
        return format_html_join(", ", "{}", ((in_words(each, name),) for each in values))
    return format_html_join(", ", "{} {}", ((key, in_words(each, key)) for key, each in values.items()))


def _counted(name: str, value: float) -> str:
    if name in _MONEY and isinstance(value, int):
        return money(value)
    if name == "bytes" or name.endswith("_bytes"):
        return size(int(value))
    if name.endswith("percent"):
        return f"{number(value)} %"
    if name == "days":
        return f"{number(value)} day{'' if value == 1 else 's'}"
    return number(value)


def _time(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return when(moment) if moment.tzinfo is not None else text
