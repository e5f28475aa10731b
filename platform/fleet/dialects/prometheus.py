"""Reads Prometheus' text format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text: str) -> Iterator[tuple[str, str, float]]:
    """Name, labels as they are written, and value of every line that has a finite value."""
    for match in _SAMPLE.finditer(text):
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            yield match["name"], match["labels"] or "", value


def labels_of(text: str) -> dict[str, str]:
    return dict(_LABEL.findall(text))
