"""How fast a batch goes: as its tenant's limits allow, with half of each left for live requests to come."""

from __future__ import annotations

import time

from gateway.errors import ApiError
from tenants.limit_state import LimitState

LONGEST_WAIT = 10.0
"""Seconds for which a batch is held while it waits; for longer it is put down, so that others get its place."""

LONGEST_REST = 300.0
"""Seconds after which a batch that was put down is tried again, so that a raised limit is noticed."""


class Pace:
    """When the next line of a batch may begin, and how many may run at once."""

    def __init__(self, most: int) -> None:
        self.at_once = 1  # until an admission tells of the limits
        self._most = most
        self._not_before = 0.0
        self._refusals = 0

    def wait(self) -> float:
        """Seconds until a line may begin."""
        return max(0.0, self._not_before - time.monotonic())

    def learn(self, limits: LimitState | None) -> None:
        """What an admission, or its refusal, said of the limits of all three: tenant, member and key."""
        if limits is None:
            return
        if limits.limit_concurrent is None:
            self.at_once = self._most
        else:
            self.at_once = max(1, min(self._most, limits.limit_concurrent // 2))
        self._not_before = time.monotonic() + seconds_to_half(limits)

    def admitted(self) -> None:
        self._refusals = 0

    def refused(self, error: ApiError) -> None:
        """The line has to be tried again; each time in a row that nothing was let in, later."""
        if self.wait() == 0:  # else it is the same refusal, of a line beside
            self._refusals += 1
        delay = max(error.retry_after or 1.0, min(0.5 * 2 ** min(self._refusals, 8), 30.0))
        self._not_before = max(self._not_before, time.monotonic() + delay)


def seconds_to_half(limits: LimitState) -> float:
    """Until half of each rate is there again. Rates refill continuously, the limit within a minute."""
    rates = (
        (limits.limit_requests, limits.remaining_requests),
        (limits.limit_tokens, limits.remaining_tokens),
    )
    return max(
        ((limit // 2 - (left or 0)) * 60 / limit for limit, left in rates if limit),
        default=0.0,
    )


def may_succeed_later(error: ApiError) -> bool:
    """Whether waiting mends it: a limit that refills, a worker that is busy or gone, an account that is suspended."""
    if error.status == 429:
        return error.retry_after is not None
    return error.status >= 500 or error.code == "tenant_suspended"
