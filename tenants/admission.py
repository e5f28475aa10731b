"""May this request run? One transaction says so, and takes what the request needs.

The rules are in ``tenants/sql/admit.sql``; this module calls it, and words the grant. What it refuses is worded in
``tenants/refusals.py`` and counted in ``tenants/denials.py``.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID
from weakref import WeakValueDictionary

from inference.protocol import Grant
from tenants import denials, grants
from tenants.access import Access, ServedModel
from tenants.db import Pool
from tenants.durability import on_disk
from tenants.errors import Denied
from tenants.limit_state import LimitState
from tenants.refusals import Wanted, denied

LEASE = timedelta(seconds=30)
"""How long a request counts as running after its gateway process was last heard of; renewed by each checkpoint."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """:param max_tokens: most tokens of each choice; what was asked for, or what the limits and the context leave.
    :param cost: what is held for the request in micro-units: the most that it can cost.
    :param grant: what a worker has to be told, signed anew for each: see :func:`tenants.grants.signed_now`.
    """

    max_tokens: int
    cost: int
    grant: Grant
    limits: LimitState


_ADMIT = """
SELECT tenants_admit_async(%(request)s, %(tenant)s, %(key)s, %(base)s, %(adapter)s, %(prompt)s, %(max)s, %(choices)s,
                           %(lease)s, %(now)s)
"""

_INT32 = 2**31 - 1


_turns: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, UUID], asyncio.Semaphore] = WeakValueDictionary()


def _turn(pool: Pool, tenant_id: UUID) -> asyncio.Semaphore:
    """Bounds the connections that one tenant's admissions can occupy in this process to half the pool.

    They stand in line for the tenant's bucket row anyway; waiting here keeps a busy tenant from holding every
    connection while others wait for one.
    """
    key = (asyncio.get_running_loop(), tenant_id)
    turn = _turns.get(key)
    if turn is None:
        turn = _turns[key] = asyncio.Semaphore(max(1, pool.max_size // 2))
    return turn


def _check(wanted: Wanted) -> None:
    """Numbers that no limit has to be asked about. Raises :class:`~tenants.errors.Denied`."""
    for name, value in (("messages", wanted.prompt_tokens), ("max_tokens", wanted.max_tokens), ("n", wanted.choices)):
        if value is not None and not 1 <= value <= _INT32:
            raise Denied("invalid_value", f"{name} has to be between 1 and {_INT32}.", param=name)
    if wanted.prompt_tokens + (wanted.max_tokens or 1) * wanted.choices > _INT32:
        raise Denied("invalid_value", f"n times max_tokens has to stay below {_INT32}.", param="max_tokens")


async def admit(
    pool: Pool,
    *,
    request_id: UUID,
    access: Access,
    model: ServedModel,
    prompt_tokens: int,
    max_tokens: int | None,
    choices: int = 1,
    priority: int = 0,
    now: datetime | None = None,
) -> Admitted:
    """Admit the request, or raise :class:`~tenants.errors.Denied`; a refusal consumes nothing.

    An admitted request holds ``prompt_tokens + choices · max_tokens`` tokens, their price and a concurrency lease until
    :func:`tenants.settlement.settle`, or until its lease runs out.

    :param request_id: a fresh UUIDv7.
    :param max_tokens: what the client asked for, for each choice; ``None``: as many as limits and context allow.
    :param choices: how many answers to the one prompt.
    :param priority: the grant's; lower runs first.
    :param now: a clock for tests; the database's own otherwise.
    """
    wanted = Wanted(model.id, prompt_tokens, max_tokens, choices)
    try:
        return await _admit(pool, access, model, wanted, request_id=request_id, priority=priority, now=now)
    except Denied as error:
        denials.note(pool, request_id, access, model, error)
        raise


async def _admit(
    pool: Pool,
    access: Access,
    model: ServedModel,
    wanted: Wanted,
    *,
    request_id: UUID,
    priority: int,
    now: datetime | None,
) -> Admitted:
    _check(wanted)
    arguments = {
        "request": request_id,
        "tenant": access.tenant_id,
        "key": access.key_id,
        "base": model.base_model_id,
        "adapter": model.adapter_version_id,
        "prompt": wanted.prompt_tokens,
        "max": wanted.max_tokens,
        "choices": wanted.choices,
        "lease": LEASE,
        "now": now,
    }
    async with _turn(pool, access.tenant_id), pool.connection() as connection:
        row = await (await connection.execute(_ADMIT, arguments)).fetchone()
    assert row is not None, "a function returns one row"
    verdict = row[0]
    if verdict["code"] is not None:
        raise denied(verdict, wanted)
    await on_disk(pool)
    grant = Grant(
        request_id=str(request_id),
        tenant=str(access.tenant_id),
        namespace=verdict["namespace"],
        base=verdict["fingerprint"],
        adapter=verdict["adapter_digest"],
        max_input=wanted.prompt_tokens,
        max_output=verdict["max_tokens"] * wanted.choices,
        priority=priority,
        weight=verdict["weight"],
        expires_at=int(time.time()) + grants.START_WITHIN_SECONDS,
    )
    return Admitted(verdict["max_tokens"], verdict["cost"], grant, LimitState.of(verdict))
