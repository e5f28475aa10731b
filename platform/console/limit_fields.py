"""Limits in forms: money in the currency, sizes with a unit; what is left empty is no limit of the holder's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError

from console.amounts import parts
from console.limit_words import WORDS, Kind, Word
from tenants.limits import Holder, names_for

_UNITS = {
    "TiB": 1 << 40,
    "TB": 10**12,
    "GiB": 1 << 30,
    "GB": 10**9,
    "MiB": 1 << 20,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?\s*([A-Za-z]*)", re.ASCII)


class MoneyField(forms.DecimalField):
    """An amount in the currency, in micro-units inside: ``12.50`` is 12,500,000."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("min_value", 0)
        super().__init__(max_digits=19, decimal_places=6, **kwargs)

    def clean(self, value: Any) -> int | None:
        amount = super().clean(value)
        return None if amount is None else int(amount.scaleb(6))

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, int):
            return value
        whole, part = parts(value)
        return f"{whole}.{part}"


class SizeField(forms.CharField):
    """A number of bytes: ``20 GB``, ``1.5 GiB``, ``900``."""

    def clean(self, value: Any) -> int | None:
        text = super().clean(value)
        if not text:
            return None
        found = _SIZE.fullmatch(text)
        units = {unit.lower(): factor for unit, factor in _UNITS.items()}
        factor = units.get(found[3].lower() or "b") if found else None
        if found is None or factor is None:
            raise ValidationError("A size is a number and a unit, such as 20 GB, 1.5 GiB or 900 B.")
        return int(Decimal(f"{found[1]}.{found[2] or 0}") * factor)

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, int):
            return value
        unit = next(unit for unit, factor in _UNITS.items() if value % factor == 0 and (value or factor == 1))
        return f"{value // _UNITS[unit]} {unit}"


def limit_fields(kind: type[Holder], inherited: Mapping[str, int | None] | None = None) -> dict[str, forms.Field]:
    """A field for each limit that such a holder may have, by its name.

    :param inherited: what holds where the field is left empty: the plan's; ``None``: nothing does.
    """
    return {name: _field(WORDS[name], name, inherited) for name in names_for(kind)}


def limit_changes(kind: type[Holder], cleaned: Mapping[str, Any]) -> dict[str, int | None]:
    """What a form with :func:`limit_fields` says, as :func:`tenants.limits.set_limits` takes it."""
    return {name: cleaned[name] for name in names_for(kind) if name in cleaned}


def _field(word: Word, name: str, inherited: Mapping[str, int | None] | None) -> forms.Field:
    value = None if inherited is None else inherited.get(name)
    if inherited is None:
        empty = "no limit"
    else:
        empty = "the plan has none" if value is None else f"the plan's: {word.text(value)}"
    attrs = {"placeholder": empty}
    label = f"{word.title}, in {settings.CURRENCY}" if word.kind is Kind.MONEY else word.title
    common: dict[str, Any] = {"label": label, "required": False, "help_text": _HELP.get(name, "")}
    if word.kind is Kind.MONEY:
        return MoneyField(widget=forms.TextInput(attrs={**attrs, "inputmode": "decimal"}), **common)
    if word.kind is Kind.SIZE:
        return SizeField(max_length=40, widget=forms.TextInput(attrs=attrs), **common)
    return forms.IntegerField(widget=forms.TextInput(attrs={**attrs, "inputmode": "numeric"}), **common)


_HELP = {
    "requests_per_minute": "Also the largest burst.",
    "tokens_per_minute": "Prompt and output together; also the largest burst.",
    "tokens_per_day": "Prompt and output together.",
    "tokens_per_month": "Prompt and output together.",
    "budget_soft": "From there on a warning is given; requests go on.",
    "budget_hard": "Requests beyond it are refused.",
    "max_output_tokens": "Over all its choices.",
    "max_adapter_versions": "Rejected ones included, deleted ones not.",
    "max_adapter_bytes": "Of all versions' files and of open uploads: 20 GB, 1.5 GiB.",
}
