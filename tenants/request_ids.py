"""What a request's id says: a UUIDv7, it begins with the time at which a gateway made it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def least_at(moment: datetime, later: timedelta = timedelta(0)) -> UUID:
    """The least id of a request that a gateway made at ``moment``, or so much later: where in an index to begin.

    ``later`` is added to a duration, not to the time, which may be the first or last that there is.
    """
    milliseconds = (moment - _EPOCH + later) // timedelta(milliseconds=1)
    return UUID(int=max(milliseconds, 0) << 80)
