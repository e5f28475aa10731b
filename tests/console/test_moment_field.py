from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django import forms

from console.moment_field import MomentField


class _Form(forms.Form):
    end = MomentField(label="Ends")


def test_it_says_utc_where_no_script_runs() -> None:
    shown = str(_Form(initial={"end": datetime(2090, 1, 31, 12, 30, tzinfo=UTC)}))
    assert "Ends (UTC)" in shown
    assert 'value="2090-01-31T12:30"' in shown
    assert 'data-utc="2090-01-31T12:30"' in shown
    assert 'data-utc=""' in str(_Form())
    assert 'data-utc="2001-01-01T00:00"' in str(_Form({"end": "2001-01-01T00:00"})), "as sent, when it is shown again"


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        ("", None),
        ("2090-01-31T12:30", datetime(2090, 1, 31, 12, 30, tzinfo=UTC)),
        ("2090-01-31T12:30+02:00", datetime(2090, 1, 31, 10, 30, tzinfo=UTC)),
    ],
)
def test_it_is_utc(sent: str, end: datetime | None) -> None:
    form = _Form({"end": sent})
    assert form.is_valid()
    assert form.cleaned_data["end"] == end


@pytest.mark.parametrize("sent", ["soon", "0001-01-01T00:00+14:00", "9999-12-31T23:00-14:00", "+010000-01-01T00:00"])
def test_what_is_no_time_is_refused(sent: str) -> None:
    assert "Enter a valid date/time." in _Form({"end": sent}).errors["end"]
