from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LimitState:
    """A caller's limits just after an admission, or as a refusal found them. ``None``: unlimited.

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


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
