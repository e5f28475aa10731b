"""May this request run? One transaction says so, and takes what the request needs.

The rules are in ``tenants/sql/admit.sql``; this module calls it, words its refusals and signs the grant.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from psycopg.rows import dict_row

from inference.protocol import Grant
from tenants import grants
from tenants.access import Access, ServedModel
from tenants.db import Pool
from tenants.errors import Denied, ModelNotFound

LEASE = timedelta(seconds=30)
"""How long a request counts as running after its gateway process was last heard of; renewed by each checkpoint."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """The tenant's limits just after an admission, or as a refusal found them. ``None``: unlimited.

    ``reset_requests_seconds`` is the time until the whole of ``limit_requests`` is there again.
    """

    limit_requests: int | None
    remaining_requests: int | None
    reset_requests_seconds: float | None
    limit_concurrent: int | None
    remaining_concurrent: int | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """:param max_tokens: most tokens to generate; what was asked for, or what the limits and the context leave."""

    max_tokens: int
    grant: str
    limits: LimitState


_ADMIT = """
SELECT * FROM tenants_admit(%(request)s, %(tenant)s, %(key)s, %(base)s, %(adapter)s, %(prompt)s, %(max)s, %(lease)s,
                            %(now)s)
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


def _checked(value: int, name: str) -> int:
    if not 1 <= value <= _INT32:
        raise Denied("invalid_value", f"{name} has to be between 1 and {_INT32}.", param=name)
    return value


async def admit(
    pool: Pool,
    *,
    request_id: UUID,
    access: Access,
    model: ServedModel,
    prompt_tokens: int,
    max_tokens: int | None,
    now: datetime | None = None,
) -> Admitted:
    """Admit the request, or raise :class:`~tenants.errors.Denied`; a refusal consumes nothing.

    An admitted request holds a concurrency lease until :func:`tenants.settlement.settle`, or until its lease runs out.

    :param request_id: a fresh UUIDv7.
    :param max_tokens: what the client asked for; ``None``: as many as the limits and the context allow.
    :param now: a clock for tests; the database's own otherwise.
    """
    _checked(prompt_tokens, "messages")
    if max_tokens is not None:
        _checked(max_tokens, "max_tokens")
    arguments = {
        "request": request_id,
        "tenant": access.tenant_id,
        "key": access.key_id,
        "base": model.base_model_id,
        "adapter": model.adapter_version_id,
        "prompt": prompt_tokens,
        "max": max_tokens,
        "lease": LEASE,
        "now": now,
    }
    turn = _turn(pool, access.tenant_id)
    async with turn, pool.connection() as connection, connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(_ADMIT, arguments)
        row = await cursor.fetchone()
    assert row is not None, "a function with OUT parameters returns one row"
    limits = _limits(row)
    if row["code"] is not None:
        raise _denial(row, limits, model, prompt_tokens, max_tokens)
    grant = Grant(
        request_id=str(request_id),
        tenant=str(access.tenant_id),
        namespace=row["namespace"],
        base=row["fingerprint"],
        adapter=row["adapter_digest"],
        max_input=prompt_tokens,
        max_output=row["max_tokens"],
        priority=0,
        weight=row["weight"],
        expires_at=int(time.time()) + grants.START_WITHIN_SECONDS,
    )
    return Admitted(row["max_tokens"], grants.sign(grant), limits)


def _limits(row: dict[str, Any]) -> LimitState:
    reset = row["reset_requests_us"]
    return LimitState(
        limit_requests=row["limit_requests"],
        remaining_requests=row["remaining_requests"],
        reset_requests_seconds=None if reset is None else reset / 1e6,
        limit_concurrent=row["limit_concurrent"],
        remaining_concurrent=row["remaining_concurrent"],
    )


def _denial(
    row: dict[str, Any], limits: LimitState, model: ServedModel, prompt_tokens: int, max_tokens: int | None
) -> Denied:
    code, name, value = row["code"], row["limit_name"], row["limit_value"]
    retry_after = None
    param = None
    match code, name:
        case "key_revoked", _:
            message = "Incorrect API key provided."
        case "tenant_suspended", _:
            message = "This account is suspended."
        case "model_not_found", _:
            message, param = str(ModelNotFound(model.id)), "model"
        case "context_length_exceeded", "max_input_tokens":
            message, param = f"The prompt has {prompt_tokens} tokens; your limit {name} is {value}.", "messages"
        case "context_length_exceeded", _:
            wanted = "" if max_tokens is None else f" and max_tokens asks for {max_tokens}"
            message = f"The model's context is {value} tokens, but the prompt has {prompt_tokens}{wanted}."
            param = "messages"
        case "max_output_tokens_exceeded", _:
            message, param = f"max_tokens is {max_tokens}; your limit {name} is {value}.", "max_tokens"
        case "concurrency_limit_exceeded", _:
            message = f"{value} requests are running already, which is your limit {name}."
            retry_after = 1.0
        case "rate_limit_exceeded", _:
            retry_after = row["retry_after_us"] / 1e6
            message = f"Your limit {name} of {value} is used up; try again in {retry_after:.3f} s."
        case _:
            raise AssertionError(f"admit.sql answered with an unknown code {code!r}")
    known = None if code in ("key_revoked", "tenant_suspended", "model_not_found") else limits
    return Denied(code, message, limit=name, param=param, retry_after=retry_after, limits=known)
