from __future__ import annotations

from typing import Any

from django import forms

from console.edit_form import EditForm
from console.forms import Form
from console.limit_fields import limit_changes, limit_fields
from tenants.limits import names_for
from tenants.models import Plan


class NewPlanForm(Form):
    name = forms.CharField(max_length=63, help_text="Letters, digits, hyphens and underscores.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= limit_fields(Plan)

    def limits(self) -> dict[str, int | None]:
        found = limit_changes(Plan, self.cleaned_data)
        return {name: value for name, value in found.items() if value is not None}


class PlanForm(EditForm):
    def __init__(self, plan: Plan, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= limit_fields(Plan)
        self.initial = {name: getattr(plan, name) for name in names_for(Plan)}

    def limits(self) -> dict[str, int | None]:
        """Those that were changed."""
        return limit_changes(Plan, self.changed())
