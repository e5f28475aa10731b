from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings

from console.forms import Form
from console.limit_fields import MoneyField
from console.model_field import ModelField
from console.moment_field import MomentField
from tenants.models import Plan


def _money(label: str, **kwargs: Any) -> MoneyField:
    widget = forms.TextInput(attrs={"inputmode": "decimal"})
    return MoneyField(label=f"{label}, in {settings.CURRENCY} per million", widget=widget, **kwargs)


class PriceForm(Form):
    aliases = {"base_model": "model"}  # noqa: RUF012 - as in its base

    model = ModelField()
    plan = forms.ModelChoiceField(
        queryset=Plan.objects.order_by("name"),
        required=False,
        to_field_name="name",
        empty_label="everybody without a price of their plan’s own",
        label="For",
    )
    input = _money("Prompt tokens")
    cached_input = _money("Prompt tokens from the cache", required=False, help_text="Left empty: as prompt tokens.")
    output = _money("Generated tokens")
    valid_from = MomentField(label="From", help_text="Left empty: from now on. Never in the past.")
