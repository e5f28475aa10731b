"""Fields that several forms have."""

from __future__ import annotations

from datetime import timedelta

from django import forms

from console.duration_field import DurationField
from console.lines_field import LinesField


class _Form(forms.Form):
    names = LinesField(most=3)
    overlap = DurationField([(timedelta(0), "none"), (timedelta(hours=1), "1 hour")], initial=timedelta(hours=1))


def test_names_stand_one_a_line_or_between_commas() -> None:
    for text, names in (("", None), (" \n", None), ("b\r\na, b", ["b", "a"]), ("a b,c", ["a", "b", "c"])):
        form = _Form({"names": text, "overlap": "0"})
        assert form.is_valid()
        assert form.cleaned_data["names"] == names
    assert "There are 4; 3 are the most." in _Form({"names": "a b c d"}).errors["names"]
    assert "a\nb</textarea>" in str(_Form(initial={"names": ["a", "b"]}))


def test_a_duration_is_sent_in_seconds() -> None:
    assert '<option value="3600" selected>1 hour' in str(_Form())
    form = _Form({"overlap": "3600"})
    assert form.is_valid()
    assert form.cleaned_data["overlap"] == timedelta(hours=1)
    assert "overlap" in _Form({"overlap": "60"}).errors
