"""What the kernels' benchmark found: lines to read, a CSV file, and geometric means a shape class."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean

from kernel_shapes import Case

FIELDS = (
    *("model", "site", "rank", "tokens", "adapters", "class", "column", "status", "error", "bytes"),
    *("microseconds", "metadata_microseconds", "total_microseconds", "copy_share"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One column at one case.

    :param status: ``right``, or ``wrong``, or what kept it from being checked or timed.
    :param error: of the delta, as a part of its largest number; ``None``: it was not computed.
    :param bytes: that have to move. :param microseconds: of one call; ``None``: not measured.
    :param metadata: microseconds of a step, once for all sites.
    """

    case: Case
    column: str
    status: str
    bytes: int
    error: float | None = None
    microseconds: float | None = None
    metadata: float | None = None

    @property
    def total(self) -> float | None:
        """Microseconds with the site's part of the step's metadata: they serve four sites a layer."""
        if self.microseconds is None or self.metadata is None:
            return None
        return self.microseconds + self.metadata / (4 * self.case.site.model.layers)

    def share(self, bandwidth: float | None) -> float | None:
        """Of the copy bandwidth, in the time of one call."""
        if self.microseconds is None or bandwidth is None:
            return None
        return self.bytes / (self.microseconds / 1e6) / bandwidth

    def shown(self, bandwidth: float | None) -> str:
        share = self.share(bandwidth)
        if share is not None:
            return f"{self.column} {self.microseconds:.1f} µs {share:.0%}"
        off = f" ({self.error:.2g} off)" if self.error is not None else ""
        return f"{self.column} {self.status}{off}"


@dataclass(slots=True)
class Results:
    """:param bandwidth: bytes a second of a copy; ``None``: no device whose times mean anything."""

    bandwidth: float | None
    rows: list[Result] = field(default_factory=list)

    def line(self, case: Case, found: Sequence[Result]) -> str:
        parts = "   ".join(result.shown(self.bandwidth) for result in found)
        return f"{case} {found[0].bytes / 1e6:9.2f} MB   {parts}"

    def failures(self, column: str) -> list[Result]:
        """Where it was wrong, or failed; not where it does not fit."""
        bad = ("wrong", "failed")
        return [row for row in self.rows if row.column == column and row.status.startswith(bad)]

    def write(self, path: Path) -> None:
        """A row a column and case; what was not measured is empty."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(FIELDS)
            for row in self.rows:
                case = row.case
                share = row.share(self.bandwidth)
                place = (case.site.model.name, case.site.name, case.rank, case.tokens, case.adapters, case.kind)
                numbers = (row.microseconds, row.metadata, row.total)
                writer.writerow(
                    [
                        *(*place, row.column, row.status, _number(row.error, 3), row.bytes),
                        *(_number(number, 5) for number in numbers),
                        _number(share, 3),
                    ]
                )

    def means(self, ours: str = "ours") -> Iterable[str]:
        """How many times as long every other column takes, and the best of the others, each shape class.

        Of cases at which both were measured, and nothing where there are none.
        """
        timed: dict[str, dict[Case, float]] = {}
        for row in self.rows:
            if row.total is not None:
                timed.setdefault(row.column, {})[row.case] = row.total
        own = timed.pop(ours, {})
        others = [column for name, column in timed.items() if not name.startswith(ours)]
        best = {case: min(column[case] for column in others if case in column) for case in set().union(*others)}
        for kind in dict.fromkeys(row.case.kind for row in self.rows):
            parts = []
            for name, column in (*timed.items(), ("the best of the others", best)):
                ratios = [total / own[case] for case, total in column.items() if case in own and case.kind == kind]
                if ratios:
                    won = sum(ratio > 1 for ratio in ratios)
                    parts.append(f"{name} {geometric_mean(ratios):.2f} (slower in {won} of {len(ratios)})")
            if parts:
                yield f"{kind:28} {'   '.join(parts)}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"
