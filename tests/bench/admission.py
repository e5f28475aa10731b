"""Admissions and settlements per second: 16 clients in one process, all of one tenant, then of many, then 64 of many.

Everything is on: a price, and every limit on the tenants and on their keys, wide enough to refuse nothing. Then a flood
of refusals, which must write next to nothing. A durable embedded PostgreSQL of its own (fsync on); ``reconcile`` proves
the books before any figure is printed. One JSON object on the last line of stdout.

    python tests/bench/admission.py --model DIR --folder DIR [--repeats N] [--requests N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import uuid6
import uvloop
from processes import own_settings
from workload import IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS

if TYPE_CHECKING:
    from tenants.access import Access
    from tenants.db import Pool


TENANTS = 32
CROWD = 64
"""Clients at once, where statements are full of requests."""
WIDE = 10**9
LIMITS = [
    *("--requests-per-minute", str(WIDE), "--tokens-per-minute", str(WIDE), "--max-concurrent", "1000"),
    *("--tokens-per-day", str(WIDE), "--tokens-per-month", str(WIDE)),
    *("--budget-soft", str(WIDE), "--budget-hard", str(WIDE)),
    *("--max-input-tokens", "100000", "--max-output-tokens", "100000"),
]
MOST_BYTES = 50
"""Of write-ahead log for one refusal, in a flood of them."""


def command(*arguments: str) -> Any:
    """A management command's answer."""
    from django.core.management import call_command

    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def seed(model: Path) -> list[str]:
    """Tenants, and one key of each; all with every limit."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    name = command("register_model", "--directory", str(model))["model"]
    command("set_price", name, "--input", "150000", "--cached-input", "75000", "--output", "600000")
    keys = []
    for number in range(TENANTS):
        command("create_tenant", f"bench{number}")
        key = command("issue_key", f"bench{number}")
        command("set_limits", f"bench{number}", *LIMITS)
        command("set_limits", f"bench{number}", "--key", key["public_id"], *LIMITS)
        keys.append(key["api_key"])
    return keys


async def one(pool: Pool, access: Access) -> None:
    from tenants.admission import admit
    from tenants.settlement import settle

    request_id = uuid.UUID(str(uuid6.uuid7()))
    model = next(iter(access.models.values()))
    await admit(
        pool,
        request_id=request_id,
        access=access,
        model=model,
        prompt_tokens=PROMPT_TOKENS,
        max_tokens=OUTPUT_TOKENS,
    )
    settled = await settle(
        pool,
        request_id=request_id,
        tenant_id=access.tenant_id,
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=0,
        completion_tokens=OUTPUT_TOKENS,
        outcome="completed",
        finish_reason="length",
    )
    if not settled:
        raise SystemExit(f"request {request_id} was settled by somebody else")


async def rate(pool: Pool, callers: list[Access], requests: int, in_flight: int = IN_FLIGHT) -> float:
    """Requests admitted and settled per second, so many at a time."""
    todo = iter(range(requests))

    async def lane() -> None:
        for number in todo:
            await one(pool, callers[number % len(callers)])

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(lane())
    return requests / (time.perf_counter() - started)


async def refusals(pool: Pool, caller: Access, requests: int) -> float:
    """Refusals per second; ``SystemExit`` when they write more than :data:`MOST_BYTES` each."""
    from tenants import denials
    from tenants.admission import admit
    from tenants.errors import Denied

    async def position() -> int:
        async with pool.connection() as connection:
            cursor = await connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
            row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    model = next(iter(caller.models.values()))
    todo = iter(range(requests))

    async def lane() -> None:
        for _ in todo:
            with contextlib.suppress(Denied):
                request_id = uuid.UUID(str(uuid6.uuid7()))
                await admit(
                    pool, request_id=request_id, access=caller, model=model, prompt_tokens=1, max_tokens=100_001
                )
                raise SystemExit("admitted what had to be refused")

    before, started = await position(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(lane())
    rate = requests / (time.perf_counter() - started)
    await denials.flush(pool)
    each = (await position() - before) / requests
    if each > MOST_BYTES:
        raise SystemExit(f"a refusal writes {each:.0f} bytes of write-ahead log: no figures")
    return rate


async def measure(keys: list[str], repeats: int, requests: int) -> dict[str, list[float]]:
    from tenants.access import authenticate
    from tenants.db import open_pool

    rates = {}
    async with open_pool() as pool:
        everybody = [await authenticate(pool, key) for key in keys]
        for name, callers, in_flight in (
            ("one_tenant", everybody[:1], IN_FLIGHT),
            ("many_tenants", everybody, IN_FLIGHT),
            ("many_tenants_64_clients", everybody, CROWD),
        ):
            await rate(pool, callers, 50)
            rates[name] = [await rate(pool, callers, requests, in_flight) for _ in range(repeats)]
        rates["refused"] = [await refusals(pool, everybody[0], requests) for _ in range(repeats)]
    return rates


def check_books(requests: int) -> None:
    """One ledger entry for each request and every account at its sum, or there is no figure."""
    found = command("reconcile")
    if found["entries"] != requests or found["running"]:
        raise SystemExit(f"{requests} requests were admitted and {found['entries']} are in the ledger: no figures")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    environment = own_settings(options.folder)
    os.environ.clear()
    os.environ.update(environment)
    django.setup()
    from gateway.embedded.postgres import Postgres

    database = Postgres(options.folder, options.folder / "postgres.log")
    database.start()
    try:
        keys = seed(options.model)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the gateway's own
            rates = runner.run(measure(keys, options.repeats, options.requests))
        check_books(3 * (50 + options.repeats * options.requests))
    finally:
        database.stop()
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
