from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram of seconds: how many were at most each bound, from the smallest bound to infinity."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, buckets: Mapping[float, int]) -> Histogram:
        """From cumulative counts by upper bound; without the one for infinity they say nothing."""
        if float("inf") not in buckets:
            return cls()
        bounds = sorted(buckets)
        return cls(tuple(bounds), tuple(buckets[bound] for bound in bounds))

    @property
    def count(self) -> int:
        return self.counts[-1] if self.counts else 0

    def since(self, earlier: Histogram) -> Histogram:
        """What came after ``earlier``; all of it where the process has begun to count anew meanwhile."""
        if earlier.bounds != self.bounds or any(a < b for a, b in zip(self.counts, earlier.counts, strict=True)):
            return self
        return Histogram(self.bounds, tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True)))

    def quantile(self, share: float) -> float | None:
        """Seconds that ``share`` of the values do not exceed, evenly spread within a bucket; ``None``: no values.

        Beyond the last finite bound nothing is known: then that bound.
        """
        if not self.count:
            return None
        wanted, below, lower = share * self.count, 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= wanted and count > below:
                if bound == float("inf"):
                    return lower
                return lower + (bound - lower) * (wanted - below) / (count - below)
            below, lower = count, bound
        return lower


NOTHING = Histogram()
