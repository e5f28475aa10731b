"""Admissions and settlements per second: 16 clients, one tenant and then four, in a process of its own.

The database is the one that the environment's settings name: ``gateway_load.Platform`` runs it and made the tenants.
One JSON object on the last line of stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import uuid

import django
import uuid6
from workload import IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS


async def one(pool: object, access: object) -> None:
    from tenants.admission import admit
    from tenants.settlement import settle

    request_id = uuid.UUID(str(uuid6.uuid7()))
    model = next(model for model in access.models.values() if model.adapter_digest)  # type: ignore[attr-defined]
    await admit(
        pool,  # type: ignore[arg-type]
        request_id=request_id,
        access=access,  # type: ignore[arg-type]
        model=model,
        prompt_tokens=PROMPT_TOKENS,
        max_tokens=OUTPUT_TOKENS,
    )
    settled = await settle(
        pool,  # type: ignore[arg-type]
        request_id=request_id,
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=0,
        completion_tokens=OUTPUT_TOKENS,
        outcome="completed",
        finish_reason="length",
    )
    if not settled:
        raise SystemExit(f"request {request_id} was settled by somebody else")


async def measure(keys: list[str], repeats: int, requests: int) -> dict[str, list[float]]:
    from tenants.access import authenticate
    from tenants.db import open_pool

    rates: dict[str, list[float]] = {}
    async with open_pool() as pool:
        everybody = [await authenticate(pool, key) for key in keys]
        for name, callers in (("one_tenant", everybody[:1]), ("four_tenants", everybody)):
            rates[name] = []
            for number in range(repeats + 1):
                todo = list(range(requests if number else 50))

                async def lane(todo: list[int] = todo, callers: list[object] = callers) -> None:  # type: ignore[assignment]
                    while todo:
                        await one(pool, callers[todo.pop() % len(callers)])

                started = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for _ in range(IN_FLIGHT):
                        group.create_task(lane())
                if number:
                    rates[name].append(requests / (time.perf_counter() - started))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    django.setup()
    keys = json.loads(os.environ["BENCH_KEYS"])  # in the environment: an argument is seen by every user of the machine
    print(json.dumps(asyncio.run(measure(keys, options.repeats, options.requests))))


if __name__ == "__main__":
    main()
