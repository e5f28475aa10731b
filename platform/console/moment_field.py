from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError


class _MomentInput(forms.DateTimeInput):
    """``data-utc`` is what the server says, whatever the browser puts back into the field: ``moments.js`` shows that
    in the reader's zone, and has the form send UTC.
    """

    def __init__(self) -> None:
        super().__init__(attrs={"type": "datetime-local", "step": "60"}, format="%Y-%m-%dT%H:%M")

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(name, value, attrs)
        widget = context["widget"]
        widget["attrs"] |= {"data-utc": widget["value"] or ""}
        return context


class MomentField(forms.DateTimeField):
    """A time to the minute, sent as UTC. It is typed and shown in the reader's zone; where no script runs in UTC, as
    its label says. :param label: without the zone.
    """

    def __init__(self, *, label: str, **kwargs: Any) -> None:
        super().__init__(label=f"{label} (UTC)", required=False, widget=_MomentInput(), **kwargs)

    def clean(self, value: Any) -> datetime | None:
        found = super().clean(value)
        try:
            return None if found is None else found.astimezone(UTC)
        except OverflowError:  # with an offset, at the edge of what a datetime can be
            raise ValidationError(self.error_messages["invalid"], code="invalid") from None
