"""Admissions and settlements per second: 16 clients in one process, all of one tenant and then of four.

A durable embedded PostgreSQL of its own (fsync on). One JSON object on the last line of stdout.

    python tests/bench/admission.py --model DIR --folder DIR [--repeats N] [--requests N]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import uuid6
from processes import own_settings
from workload import IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS

if TYPE_CHECKING:
    from tenants.access import Access
    from tenants.db import Pool


TENANTS = 4
LIMITS = ["--requests-per-minute", "1000000", "--max-concurrent", "1000"]


def command(*arguments: str) -> Any:
    """A management command's answer."""
    from django.core.management import call_command

    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def seed(model: Path) -> list[str]:
    """Tenants without effective limits; one key of each."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    command("register_model", "--directory", str(model))
    keys = []
    for number in range(TENANTS):
        command("create_tenant", f"bench{number}")
        command("set_limits", f"bench{number}", *LIMITS)
        keys.append(command("issue_key", f"bench{number}")["api_key"])
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
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=0,
        completion_tokens=OUTPUT_TOKENS,
        outcome="completed",
        finish_reason="length",
    )
    if not settled:
        raise SystemExit(f"request {request_id} was settled by somebody else")


async def rate(pool: Pool, callers: list[Access], requests: int) -> float:
    """Requests admitted and settled per second, sixteen at a time."""
    todo = iter(range(requests))

    async def lane() -> None:
        for number in todo:
            await one(pool, callers[number % len(callers)])

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(lane())
    return requests / (time.perf_counter() - started)


async def measure(keys: list[str], repeats: int, requests: int) -> dict[str, list[float]]:
    from tenants.access import authenticate
    from tenants.db import open_pool

    rates = {}
    async with open_pool() as pool:
        everybody = [await authenticate(pool, key) for key in keys]
        for name, callers in (("one_tenant", everybody[:1]), ("four_tenants", everybody)):
            await rate(pool, callers, 50)
            rates[name] = [await rate(pool, callers, requests) for _ in range(repeats)]
    return rates


def check_ledger(requests: int) -> None:
    """One ledger row for each request, or there is no figure."""
    rows = [command("usage", f"bench{number}") for number in range(TENANTS)]
    if (settled := sum(row["requests"] for row in rows)) != requests or any(row["running"] for row in rows):
        raise SystemExit(f"{requests} requests were admitted and {settled} are in the ledger: no figures")


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
        rates = asyncio.run(measure(seed(options.model), options.repeats, options.requests))
        check_ledger(2 * (50 + options.repeats * options.requests))
    finally:
        database.stop()
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
