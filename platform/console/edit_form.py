"""Forms about something that is there: what somebody else changed since the form was opened stays as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from console.forms import Form

Text = str | list[str]
"""What a field shows; a list where several choices can be made."""

_OUTDATED = "This form was out of date. It shows what holds now: make your change again."


class EditForm(Form):
    """A form that carries what it showed (``shown``), also through errors, and hands on only what a person changed.

    Compared with what holds when it is sent, everything that somebody else changed meanwhile would look like a change
    of this person's, back to what was. One that does not say what it showed is refused, and shown afresh.
    """

    # No CharField: what is wrong with it would be an error beside a field that nobody sees.
    shown = forms.Field(widget=forms.HiddenInput(attrs={"autocomplete": "off"}), required=False)

    def changed(self) -> dict[str, Any]:
        """What was sent otherwise than it was shown, cleaned, by the fields' names. Of fields that are right alone."""
        shown = self._shown()
        if shown is None:
            return {}
        return {name: value for name, value in self.cleaned_data.items() if self._differs(name, value, shown)}

    def handed_on(self) -> dict[str, Any]:
        return self.changed()

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if self._shown() is None:
            # What was sent must not stand beside a fresh ``shown``: sent again, stale fields would count as changes.
            self.data = {self.add_prefix(name): text for name, text in self._now().items()}
            self.data[self.add_prefix("shown")] = json.dumps(self._now())
            raise ValidationError(_OUTDATED)
        return data

    def get_initial_for_field(self, field: forms.Field, field_name: str) -> Any:
        """Late, as forms add fields to themselves while they are made."""
        return json.dumps(self._now()) if field_name == "shown" else super().get_initial_for_field(field, field_name)

    def _now(self) -> dict[str, Text]:
        """What each field shows where the form is opened now, as text that the field itself can read."""
        return {
            name: _text(field.prepare_value(self.get_initial_for_field(field, name)))
            for name, field in self.fields.items()
            if name != "shown"
        }

    def _shown(self) -> dict[str, Text] | None:
        """What each field showed to whoever sent the form; ``None`` where the form does not say."""
        try:
            found = json.loads(self.data.get(self.add_prefix("shown"), ""))
        except (ValueError, TypeError, RecursionError):
            return None
        return found if isinstance(found, dict) and _kinds(found) == _kinds(self._now()) else None

    def _differs(self, name: str, value: Any, shown: Mapping[str, Text]) -> bool:
        if name == "shown":
            return False
        try:
            return bool(self.fields[name].clean(shown[name]) != value)
        except ValidationError:  # a choice that is none any more
            return True


def _kinds(shown: Mapping[str, Any]) -> dict[str, type]:
    return {name: type(text) for name, text in shown.items()}


def _text(value: Any) -> Text:
    if isinstance(value, list):
        return [str(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat(timespec="minutes")
    return "" if value is None else str(value)
