"""Measured figures: a median of repeats, its spread, and what it is compared with."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """:param baseline: name of the figure that ``ratio`` divides by."""

    name: str
    unit: str
    repeats: tuple[float, ...]
    baseline: str | None = None

    @property
    def value(self) -> float:
        return statistics.median(self.repeats)

    @property
    def spread(self) -> float:
        """(greatest − least) ÷ median of the repeats."""
        return (max(self.repeats) - min(self.repeats)) / self.value if self.value else 0.0


@dataclass(slots=True)
class Figures:
    rows: dict[str, Figure] = field(default_factory=dict)

    def add(self, name: str, unit: str, repeats: Sequence[float], baseline: str | None = None) -> None:
        self.rows[name] = Figure(name, unit, tuple(repeats), baseline)

    def ratio(self, figure: Figure) -> float | None:
        if figure.baseline is None or figure.baseline not in self.rows:
            return None
        return figure.value / self.rows[figure.baseline].value

    def table(self) -> str:
        lines = [f"{'figure':<32}{'value':>10}  {'unit':<12}{'spread':>7}   ratio"]
        for figure in self.rows.values():
            ratio = self.ratio(figure)
            against = f"{ratio:.2f} × {figure.baseline}" if ratio is not None else ""
            spread = f"{figure.spread:.0%}" if len(figure.repeats) > 1 else ""
            lines.append(f"{figure.name:<32}{figure.value:>10.1f}  {figure.unit:<12}{spread:>7}   {against}")
        return "\n".join(line.rstrip() for line in lines)

    def write(self, path: Path) -> None:
        """``[{"name", "value", "unit", "baseline", "ratio"}]``; ``baseline`` is the value compared with, or null."""
        out: list[dict[str, Any]] = []
        for figure in self.rows.values():
            ratio = self.ratio(figure)
            baseline = self.rows[figure.baseline].value if ratio is not None and figure.baseline else None
            out.append(
                {
                    "name": figure.name,
                    "value": round(figure.value, 3),
                    "unit": figure.unit,
                    "baseline": None if baseline is None else round(baseline, 3),
                    "ratio": None if ratio is None else round(ratio, 3),
                }
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(out, indent=2) + "\n")
