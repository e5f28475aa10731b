"""Forms about a tenant, for operators."""

from __future__ import annotations

from typing import Any, cast

from django import forms

from console.edit_form import EditForm
from console.forms import Form
from console.limit_fields import limit_fields
from tenants import plans
from tenants.limits import names_for
from tenants.models import BaseModel, Tenant

_WEIGHT = "Share of a busy worker, against other accounts: with 2 it gets twice what one with 1 gets."


def _plans() -> list[tuple[str, str]]:
    return [(name, name) for name in plans.names()]


def _models() -> list[tuple[str, str]]:
    """In the order in which they were registered."""
    rows = BaseModel.objects.filter(state=BaseModel.State.ACTIVE).order_by("pk")
    return [(name, name) for name in rows.values_list("name", flat=True)]


class _Basics(Form):
    plan = forms.ChoiceField(
        label="Plan", choices=_plans, help_text="Its limits hold where the account has none of its own."
    )
    weight = forms.IntegerField(label="Weight", min_value=1, max_value=32767, initial=1, help_text=_WEIGHT)


class NewTenant(_Basics):
    slug = forms.CharField(
        label="Short name",
        max_length=63,
        help_text="Lower-case letters, digits and hyphens: the part before / in its models' names. It never changes.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}),
    )
    display_name = forms.CharField(
        label="Name", max_length=200, required=False, help_text="For people; the short name if left empty."
    )
    models = forms.MultipleChoiceField(
        label="Base models that it may use",
        choices=_models,
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    field_order = ("slug", "display_name", "plan", "weight", "models")


class TenantChange(_Basics, EditForm):
    display_name = forms.CharField(label="Name", max_length=200, help_text="For people.")
    field_order = ("display_name", "plan", "weight")


def limits_form(tenant: Tenant) -> type[EditForm]:
    """For the limits of the tenant's own, which go before its plan's."""
    inherited = {name: getattr(tenant.plan, name) for name in names_for(Tenant)}
    return cast("type[EditForm]", type("TenantLimits", (EditForm,), dict(limit_fields(Tenant, inherited))))


class Reason(Form):
    reason = forms.CharField(
        label="Why", max_length=500, required=False, help_text="The account sees it, in its audit log and webhook."
    )


class AllowModel(Form):
    """:param tenant: whose models there are already."""

    model = forms.ChoiceField(label="Base model")

    def __init__(self, tenant: Tenant, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        allowed = set(tenant.model_allowances.values_list("base_model__name", flat=True))
        left = [(name, name) for name, _ in _models() if name not in allowed]
        cast(forms.ChoiceField, self.fields["model"]).choices = left
        self.empty = not left


class AllowAdapter(Form):
    adapter = forms.CharField(
        label="Adapter", max_length=130, help_text="Another account's, as owner/name: acme/pirate."
    )
