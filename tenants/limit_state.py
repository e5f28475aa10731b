from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNIT = 60_000_000
"""Of a request or token in a rate's bucket: what a rate of one a minute refills in a microsecond is one."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """A caller's limits just after an admission, or as a refusal or a look at them found them. ``None``: unlimited.

    Of tenant, member and key, whoever has least left of each. Tokens are those of prompt and output together, with what
    running requests hold taken off. ``reset_…_seconds`` is the time until the whole of the limit is there again.

    :param over_soft_budget: somebody's ``budget_soft`` was reached before this request; a warning, no refusal.
    """

    limit_requests: int | None
    remaining_requests: int | None
    reset_requests_seconds: float | None
    limit_tokens: int | None
    remaining_tokens: int | None
    reset_tokens_seconds: float | None
    limit_concurrent: int | None
    remaining_concurrent: int | None
    over_soft_budget: bool

    @classmethod
    def of(cls, verdict: dict[str, Any]) -> LimitState:
        """From the verdict of ``tenants/sql/admit.sql``."""
        return cls(
            limit_requests=verdict["limit_requests"],
            remaining_requests=verdict["remaining_requests"],
            reset_requests_seconds=_seconds(verdict["reset_requests_us"]),
            limit_tokens=verdict["limit_tokens"],
            remaining_tokens=verdict["remaining_tokens"],
            reset_tokens_seconds=_seconds(verdict["reset_tokens_us"]),
            limit_concurrent=verdict["limit_concurrent"],
            remaining_concurrent=verdict["remaining_concurrent"],
            over_soft_budget=bool(verdict["over_soft_budget"]),
        )

    @classmethod
    def of_standing(cls, rows: Sequence[Mapping[str, Any]]) -> LimitState:
        """From the rows of ``tenants/sql/standing.sql``: what an admission would go by."""
        places = [
            (max(row["max_concurrent"] - row["running"], 0), row["max_concurrent"])
            for row in rows
            if row["max_concurrent"] is not None
        ]
        remaining_concurrent, limit_concurrent = min(places, default=(None, None))
        return cls(
            *_least(rows, "requests"),
            *_least(rows, "tokens"),
            limit_concurrent,
            remaining_concurrent,
            any(row["budget_soft"] is not None and row["month_cost"] >= row["budget_soft"] for row in rows),
        )


def _least(rows: Sequence[Mapping[str, Any]], what: str) -> tuple[int | None, int | None, float | None]:
    """The limit with least in its bucket, how much that is, and the seconds until it is full."""
    buckets = [(row[f"{what}_units"], row[f"{what}_per_minute"]) for row in rows]
    units, limit = min((each for each in buckets if each[1] is not None), default=(0, None))
    if limit is None:
        return None, None, None
    return limit, max(units // UNIT, 0), (limit * UNIT - units) / limit / 1e6 if limit else None


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
