from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms


class DurationField(forms.TypedChoiceField):
    """One of some durations; sent as seconds. :param choices: each with what it is called."""

    def __init__(self, choices: Sequence[tuple[timedelta, str]], *, initial: timedelta, **kwargs: Any) -> None:
        super().__init__(
            choices=[(_seconds(each), text) for each, text in choices],
            coerce=lambda text: timedelta(seconds=int(text)),
            initial=_seconds(initial),
            **kwargs,
        )


def _seconds(duration: timedelta) -> int:
    return int(duration.total_seconds())
