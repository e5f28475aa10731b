"""Writes prompts and answers of tenants that want them stored: beside the token path, after a request's end.

Nothing waits for it and nothing fails by it: what cannot be written is lost, and the log says how many, never what.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID
from weakref import WeakKeyDictionary

import orjson
import psycopg
from psycopg_pool import PoolTimeout

from tenants.db import Pool
from tenants.write_behind import WriteBehind

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 32_768
"""Of a prompt, and of all answers to it, that are stored: the first ones. A character is at most four bytes."""

MOST_WAITING = 500
"""Payloads that wait to be written; further ones are lost."""

FLUSH_SECONDS = 0.5

# A share of the setting's row: turning it off waits for this, and afterwards nothing is written.
_WRITE = """
INSERT INTO tenants_payload
    (request_id, tenant_id, prompt, answers, prompt_characters, answer_characters, created_at)
SELECT n.request, n.tenant, n.prompt::jsonb, n.answers::jsonb, n.prompt_characters, n.answer_characters, now()
  FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::int[], %s::int[])
       AS n (request, tenant, prompt, answers, prompt_characters, answer_characters)
  JOIN tenants_payloadstoring s ON s.tenant_id = n.tenant
   FOR KEY SHARE OF s
ON CONFLICT (request_id) DO NOTHING
"""


@dataclass(slots=True)
class Kept:
    """What one request asked and was answered so far, cut to :data:`MOST_CHARACTERS` each.

    :param prompt: roles and texts. :ivar prompt_characters: as long as it was; likewise ``answer_characters``.
    """

    prompt: list[tuple[str, str]]
    prompt_characters: int
    answers: dict[int, list[str]] = field(default_factory=dict)
    answer_characters: int = 0

    @classmethod
    def of(cls, messages: Iterable[tuple[str, str]]) -> Kept:
        kept, total = [], 0
        for role, text in messages:
            if total < MOST_CHARACTERS:
                kept.append((role, text[: MOST_CHARACTERS - total]))
            total += len(text)
        return cls(kept, total)

    def gained(self, choice: int, text: str) -> None:
        """More of an answer. Cheap: it is on the token path."""
        left = MOST_CHARACTERS - self.answer_characters
        if left > 0 and text:
            self.answers.setdefault(choice, []).append(text[:left])
        self.answer_characters += len(text)

    def row(self) -> tuple[str, str, int, int]:
        prompt = [{"role": role, "content": _storable(text)} for role, text in self.prompt]
        answers = [_storable("".join(self.answers[choice])) for choice in sorted(self.answers)]
        lengths = (self.prompt_characters, self.answer_characters)
        return (orjson.dumps(prompt).decode(), orjson.dumps(answers).decode(), *lengths)


def _storable(text: str) -> str:
    """Without what PostgreSQL's JSON cannot hold."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class _Log(WriteBehind):
    """Payloads of the requests that share one pool."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[UUID, UUID, Kept]] = []
        self.lost = 0

    async def write(self, pool: Pool) -> None:
        batch, self.waiting = self.waiting, []
        lost, self.lost = self.lost, 0
        if batch:
            try:
                columns = await asyncio.to_thread(_columns, batch)
                async with asyncio.timeout(10.0), pool.connection() as connection:
                    await connection.execute(_WRITE, columns)
            except (psycopg.Error, PoolTimeout, TimeoutError) as error:
                lost += len(batch)
                logger.warning("payloads cannot be written: %s", type(error).__name__)
        if lost:
            logger.warning("%d payloads are lost", lost)


def _columns(batch: Sequence[tuple[UUID, UUID, Kept]]) -> list[list[object]]:
    rows = [(request_id, tenant_id, *kept.row()) for request_id, tenant_id, kept in batch]
    return [list(column) for column in zip(*rows, strict=True)]


_logs: WeakKeyDictionary[Pool, _Log] = WeakKeyDictionary()


def note(pool: Pool, request_id: UUID, tenant_id: UUID, kept: Kept) -> None:
    """Have it written within :data:`FLUSH_SECONDS`, if the tenant still wants it. Never waits, never raises."""
    log = _logs.setdefault(pool, _Log())
    if len(log.waiting) >= MOST_WAITING:
        log.lost += 1
        return
    log.waiting.append((request_id, tenant_id, kept))
    log.soon(pool, FLUSH_SECONDS)


async def flush(pool: Pool) -> None:
    """Write what waits, and wait for what is being written: before the pool is closed."""
    log = _logs.get(pool)
    if log is not None:
        await log.flush(pool)
