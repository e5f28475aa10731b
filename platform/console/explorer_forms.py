"""What requests and refusals are looked for by."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from django import forms
from django.db.models import Q

from console.forms import Form
from console.moment_field import MomentField
from console.place import Place
from tenants.explorer import STATES, Wanted
from tenants.models import Member


class _Filters(Form):
    field_order = ("tenant", "model", "key", "member", "state", "code", "limit", "since", "until")

    key = forms.CharField(required=False, max_length=32, label="Key", widget=forms.TextInput({"placeholder": "its id"}))
    model = forms.CharField(required=False, max_length=200, label="Model")
    since = MomentField(label="From")
    until = MomentField(label="To")
    tenant = forms.CharField(required=False, max_length=63, label="Account")

    def __init__(self, place: Place, data: Any) -> None:
        super().__init__({name: data[name].replace("\0", "") for name in data}, auto_id="filter-%s")
        self.place = place
        if place.caller is not None:
            del self.fields["tenant"]

    @property
    def given(self) -> bool:
        """Whether anything is looked for."""
        return any(self.data.get(name, "").strip() for name in self.fields)

    def wanted(self) -> Wanted:
        """Only of a form that is valid."""
        return Wanted(**{name: value for name, value in self.cleaned_data.items() if value not in ("", None)})


class RequestFilters(_Filters):
    state = forms.ChoiceField(
        required=False, label="State", choices=[("", "any"), *((state, state) for state in STATES)]
    )
    member = forms.CharField(
        required=False, max_length=254, label="Member", widget=forms.TextInput({"placeholder": "name or address"})
    )

    def __init__(self, place: Place, data: Any) -> None:
        super().__init__(place, data)
        if place.caller is None:
            del self.fields["member"]

    def clean_member(self) -> UUID | None:
        text = self.cleaned_data["member"].strip()
        if not text:
            return None
        named = Q(user__username=text) | Q(user__email__iexact=text)
        with contextlib.suppress(ValueError):
            named |= Q(public_id=UUID(text))
        found: Member | None = self.place.rows(Member).filter(named).first()
        if found is None:
            raise forms.ValidationError(f"Nobody called {text} is a member of this account.")
        return found.public_id


class DenialFilters(_Filters):
    code = forms.CharField(required=False, max_length=40, label="Reason")
    limit = forms.CharField(required=False, max_length=40, label="Limit")
