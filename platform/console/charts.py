"""Charts: drawn by ``static/console/charts.js`` where there is a script, and the same figures as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from django.conf import settings
from django.utils.html import format_html

from console.templatetags.console import money, number, percent, seconds, when

Unit = Literal["number", "money", "share", "seconds"]
Bucket = Literal["hour", "day", "month"]

_WRITTEN: dict[str, Callable[[Any], str]] = {"number": number, "money": money, "share": percent, "seconds": seconds}


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over time.

    :param bucket: what a moment is the beginning of. Hours are shown in the reader's zone, days and months are UTC's.
    :param series: by label, as many values as moments; ``None``: nothing is known. Money in micro-units, latencies in
        seconds, shares from 0 to 1.
    """

    title: str
    unit: Unit
    bucket: Bucket
    moments: Sequence[datetime]
    series: Mapping[str, Sequence[float | None]]
    kind: Literal["bars", "lines"] = "bars"

    @property
    def empty(self) -> bool:
        return not any(value for values in self.series.values() for value in values)

    @property
    def data(self) -> str:
        """JSON for the script."""
        scale = 1e-6 if self.unit == "money" else 1
        series = [
            {"label": label, "values": [None if value is None else value * scale for value in values]}
            for label, values in self.series.items()
        ]
        return json.dumps(
            {
                "x": [moment.timestamp() for moment in self.moments],
                "unit": self.unit,
                "currency": settings.CURRENCY,
                "bucket": self.bucket,
                "kind": self.kind,
                "series": series,
            }
        )

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """As a table, the newest first: the moment and its values, with units."""
        write = _WRITTEN[self.unit]
        columns = zip(*self.series.values(), strict=True)
        rows = [
            (self._moment(at), [write(value) for value in values])
            for at, values in zip(self.moments, columns, strict=True)
        ]
        return rows[::-1]

    def _moment(self, at: datetime) -> str:
        if self.bucket == "hour":
            return str(when(at))
        at = at.astimezone(UTC)
        written = f"{at:%Y-%m-%d}" if self.bucket == "day" else f"{at:%Y-%m}"
        return format_html("{}", written)
