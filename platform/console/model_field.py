from __future__ import annotations

from django import forms

from tenants.models import BaseModel


class ModelField(forms.ModelChoiceField[BaseModel]):
    """One of all base models, by its name."""

    def __init__(self, help_text: str = "") -> None:
        super().__init__(
            queryset=BaseModel.objects.all(),
            label="Base model",
            to_field_name="name",
            empty_label=None,
            help_text=help_text,
        )
