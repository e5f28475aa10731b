"""May this request run? One transaction says so, and takes what the request needs.

The rules are in ``tenants/sql/admit.sql``; this module has them asked, together with others', and words the grant. What
it refuses is worded in ``tenants/refusals.py`` and counted in ``tenants/denials.py``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from inference.protocol import Grant
from tenants import denials, grants
from tenants.access import Access, ServedModel
from tenants.db import Pool
from tenants.durability import on_disk
from tenants.errors import Denied
from tenants.limit_state import LimitState
from tenants.refusals import Wanted, denied
from tenants.together import ask

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


_INT32 = 2**31 - 1


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
    at_most: int | None = None,
    choices: int = 1,
    priority: int = 0,
    now: datetime | None = None,
) -> Admitted:
    """Admit the request, or raise :class:`~tenants.errors.Denied`; a refusal consumes nothing.

    An admitted request holds ``prompt_tokens + choices · max_tokens`` tokens, their price and a concurrency lease until
    :func:`tenants.settlement.settle`, or until its lease runs out.

    :param request_id: a fresh UUIDv7.
    :param max_tokens: what the client asked for, for each choice; ``None``: as many as limits and context allow.
    :param at_most: where nothing was asked for: no more than this, though less may be left.
    :param choices: how many answers to the one prompt.
    :param priority: the grant's; lower runs first.
    :param now: a clock for tests; the database's own otherwise.
    """
    wanted = Wanted(model.id, prompt_tokens, max_tokens, choices)
    try:
        return await _admit(
            pool, access, model, wanted, request_id=request_id, at_most=at_most, priority=priority, now=now
        )
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
    at_most: int | None,
    priority: int,
    now: datetime | None,
) -> Admitted:
    _check(wanted)
    asked = {
        "request": request_id,
        "tenant": access.tenant_id,
        "key": access.key_id,
        "base": model.base_model_id,
        "adapter": model.adapter_version_id,
        "prompt": wanted.prompt_tokens,
        "max": wanted.max_tokens,
        "most": at_most,
        "choices": wanted.choices,
        "lease": f"{LEASE.total_seconds()} s",
        "now": now,
    }
    verdict = await ask(pool, "tenants_admit_together", access.tenant_id, asked)
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
