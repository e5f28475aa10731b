"""Limits as people write them: money in the currency, sizes with a unit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from django import forms

from console.limit_fields import MoneyField, SizeField, limit_changes, limit_fields
from console.limit_words import row
from tenants.limits import names_for
from tenants.models import Member, Plan, Tenant


class Wallet(forms.Form):
    money = MoneyField(required=False)
    size = SizeField(required=False)


def wallet(**data: str) -> Wallet:
    form = Wallet(data)
    form.is_valid()
    return form


@pytest.mark.parametrize(
    ("text", "micro"), [("12.5", 12_500_000), ("0.000001", 1), ("0", 0), ("", None), ("1e3", 10**9)]
)
def test_money_becomes_micro_units(text: str, micro: int | None) -> None:
    assert wallet(money=text).cleaned_data["money"] == micro


@pytest.mark.parametrize("text", ["-1", "0.0000001", "1e999999999", "NaN", "Infinity", "12 USD", "9" * 5000])
def test_wrong_money_is_refused(text: str) -> None:
    assert "money" in wallet(money=text).errors


@pytest.mark.parametrize(
    ("text", "size"),
    [("20 GB", 20 * 10**9), ("20gib", 20 << 30), ("1.5 MB", 1_500_000), ("900", 900), ("0", 0), ("", None)],
)
def test_sizes_have_units(text: str, size: int | None) -> None:
    assert wallet(size=text).cleaned_data["size"] == size


@pytest.mark.parametrize("text", ["-1", "20 XB", "GB", "1e9", "9" * 39, "٣ GB"])
def test_wrong_sizes_are_refused(text: str) -> None:
    assert wallet(size=text).errors["size"]


@pytest.mark.parametrize("value", [0, 1, 900, 12_500_000, 20 << 30, 20 * 10**9, 2**62])
def test_what_is_shown_is_read_back(value: int) -> None:
    shown = {name: Wallet.base_fields[name].prepare_value(value) for name in ("money", "size")}
    assert wallet(**shown).cleaned_data["size"] == value
    assert wallet(**shown).cleaned_data["money"] == value


@pytest.mark.parametrize("kind", [Tenant, Plan, Member])
def test_a_field_for_every_limit(kind: type[Tenant | Plan | Member]) -> None:
    fields = limit_fields(kind, dict.fromkeys(names_for(kind), 7))
    form_class = type("Limits", (forms.Form,), fields)
    form = form_class({"requests_per_minute": "60", "budget_hard": "1.00"})
    assert form.is_valid()
    empty: Mapping[str, int | None] = dict.fromkeys(names_for(kind))
    assert limit_changes(kind, form.cleaned_data) == {**empty, "requests_per_minute": 60, "budget_hard": 1_000_000}
    assert "the plan&#x27;s: 0.000007 USD" in form.as_p()


def test_a_limit_in_words() -> None:
    found = row("budget_hard", {"limit": 10_000_000, "used": 9_000_000, "left": 1_000_000}, "plan")
    assert (found.limit, found.used, found.left, found.share) == ("10.00 USD", "9.00 USD", "1.00 USD", 90)
    assert row("budget_hard", {"limit": 0, "used": 0, "left": 0}).share == 100
    assert row("max_input_tokens", {"limit": 1234}).limit == "1\u202f234"
    assert row("max_input_tokens", {"limit": 1234}).share is None
