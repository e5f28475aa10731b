"""OpenAI's ``x-ratelimit-*`` headers: what admission said of the limits or, for answers that it had no part in, a look
at them that is remembered for a moment, so that a flood of bad requests costs the database next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import PoolTimeout

from tenants.access import Access
from tenants.callers import Caller
from tenants.db import Pool
from tenants.limit_state import LimitState
from tenants.standing import limits_now

logger = logging.getLogger(__name__)

TTL_SECONDS = 1.0
LOOK_SECONDS = 0.5
"""No answer waits longer for its headers; it then goes without."""

MOST_LOOKS = 1_000


class _Subject(NamedTuple):
    """Whose limits. A ``None`` has none."""

    tenant_id: UUID
    member_id: int | None
    key_id: int | None


_Looks = OrderedDict[_Subject, tuple[float, asyncio.Task[LimitState | None]]]
_looks: WeakKeyDictionary[Pool, _Looks] = WeakKeyDictionary()


async def limits_of(pool: Pool, who: Access | Caller) -> LimitState | None:
    """Where the caller's limits stand, or stood up to :data:`TTL_SECONDS` ago; ``None`` where nobody can say. Whoever
    asks for the same meanwhile shares the look.
    """
    subject = _subject(who)
    looks = _looks.setdefault(pool, OrderedDict())
    now = time.monotonic()
    began, look = looks.get(subject, (0.0, None))
    if look is None or (look.done() and now - began > TTL_SECONDS):
        look = asyncio.create_task(_look(pool, subject))
        looks[subject] = now, look
        looks.move_to_end(subject)
        if len(looks) > MOST_LOOKS and next(iter(looks.values()))[1].done():
            looks.popitem(last=False)
    # A statement that is cancelled may take psycopg ten seconds to give up.
    done, _ = await asyncio.wait({look}, timeout=LOOK_SECONDS)
    return look.result() if done else None


def _subject(who: Access | Caller) -> _Subject:
    if isinstance(who, Access):
        return _Subject(who.tenant_id, who.member_id, who.key_id)
    return _Subject(who.tenant.pk, who.member.pk if who.member else None, who.key.pk if who.key else None)


async def _look(pool: Pool, subject: _Subject) -> LimitState | None:
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            return await limits_now(pool, *subject)
    except (psycopg.Error, PoolTimeout, TimeoutError) as error:
        logger.warning("limits cannot be looked at: %s", error or type(error).__name__)
        return None


def rate_limit_headers(limits: LimitState | None) -> dict[str, str]:
    """Of requests and of tokens; nothing of what is not limited."""
    if limits is None:
        return {}
    headers = {
        **_of("requests", limits.limit_requests, limits.remaining_requests, limits.reset_requests_seconds),
        **_of("tokens", limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_seconds),
    }
    if limits.over_soft_budget:
        headers["x-loraplex-warning"] = "the soft budget of this month is used up"
    return headers


def _of(what: str, limit: int | None, remaining: int | None, reset_seconds: float | None) -> dict[str, str]:
    if limit is None:
        return {}
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(max(remaining or 0, 0)),
        f"x-ratelimit-reset-{what}": duration(reset_seconds or 0.0),
    }


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``17ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
