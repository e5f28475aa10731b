"""A PostgreSQL of its own, on a disk, killed while requests are admitted, checkpointed and settled.

    python tests/tenants/durable.py FOLDER MODEL_DIR

The last line of stdout is a JSON object: what was answered, what of it is not there afterwards, and whether the books
balance. For ``test_crashes.py``.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import django

django.setup()

import psycopg  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from psycopg_pool import PoolTimeout  # noqa: E402
from uuid6 import uuid7  # noqa: E402

from gateway.embedded.errors import ServerFailed  # noqa: E402
from gateway.embedded.postgres import Postgres  # noqa: E402
from tenants.access import authenticate  # noqa: E402
from tenants.admission import admit  # noqa: E402
from tenants.db import open_pool  # noqa: E402
from tenants.models import InferenceRequest, LedgerEntry  # noqa: E402
from tenants.reconciliation import reconcile  # noqa: E402
from tenants.settlement import checkpoint, reap, settle  # noqa: E402

KILLS = 5
CLIENTS = 8


@dataclass
class Answered:
    """What the database said is done."""

    admitted: set[UUID] = field(default_factory=set)
    emitted: dict[UUID, int] = field(default_factory=dict)
    settled: dict[UUID, int] = field(default_factory=dict)


def command(*arguments: str) -> Any:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def started(folder: Path) -> Postgres:
    """The killed server's children take a moment to notice."""
    for _ in range(100):
        server = Postgres(folder, folder / "postgres.log")
        with suppress(ServerFailed):
            server.start()
            return server
        time.sleep(0.1)
    raise SystemExit("PostgreSQL does not start again")


def kill(server: Postgres) -> None:
    """All of it at once, so that no child writes out what others had not."""
    assert server.process is not None
    parent = server.process.pid
    os.kill(parent, signal.SIGSTOP)  # no new children meanwhile
    family = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for pid in (parent, *map(int, family)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    server.process.wait()


async def client(pool: Any, access: Any, answered: Answered) -> None:
    model = next(iter(access.models.values()))
    with suppress(psycopg.Error, PoolTimeout):
        while True:
            request_id, tokens = UUID(str(uuid7())), random.randint(0, 20)
            await admit(pool, request_id=request_id, access=access, model=model, prompt_tokens=5, max_tokens=20)
            answered.admitted.add(request_id)
            if random.random() < 0.5:
                await checkpoint(pool, {request_id: tokens})
                answered.emitted[request_id] = tokens
            if random.random() < 0.8:
                await settle(
                    pool,
                    request_id=request_id,
                    prompt_tokens=5,
                    cached_tokens=0,
                    completion_tokens=tokens,
                    outcome="completed",
                    finish_reason="stop",
                )
                answered.settled[request_id] = tokens


async def until_killed(server: Postgres, keys: list[str], answered: Answered) -> None:
    async with open_pool() as pool:
        callers = [await authenticate(pool, key) for key in keys]
        tasks = [asyncio.create_task(client(pool, callers[n % 2], answered)) for n in range(CLIENTS)]
        await asyncio.sleep(random.uniform(0.3, 1.0))
        kill(server)
        await asyncio.wait(tasks, timeout=1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lost(answered: Answered) -> list[str]:
    """Answers that the database does not remember."""
    requests = {row.pk: row for row in InferenceRequest.objects.unscoped()}
    entries = {row.request_id: row for row in LedgerEntry.objects.unscoped()}
    found = [f"admitted {name}" for name in answered.admitted - requests.keys()]
    found += [f"emitted {name}" for name, n in answered.emitted.items() if requests[name].emitted_tokens < n]
    found += [
        f"settled {name}"
        for name, tokens in answered.settled.items()
        if name not in entries or entries[name].completion_tokens != tokens
    ]
    return found


async def reaped() -> None:
    async with open_pool(min_size=1, max_size=1) as pool:
        await reap(pool, now=datetime.now(UTC) + timedelta(minutes=1))


def main() -> None:
    faulthandler.dump_traceback_later(150, exit=True)
    folder, model = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    answered = Answered()
    server = started(folder)
    try:
        call_command("migrate", verbosity=0)
        name = command("register_model", "--directory", str(model))["model"]
        command("set_price", name, "--input", "1000000", "--output", "2000000")
        keys = []
        for tenant in ("acme", "globex"):
            command("create_tenant", tenant)
            command("set_limits", tenant, "--requests-per-minute", "1000000", "--max-concurrent", "100000")
            keys.append(command("issue_key", tenant)["api_key"])
        for _ in range(KILLS):
            asyncio.run(until_killed(server, keys, answered))
            connection.close()
            server = started(folder)
        missing = lost(answered)
        asyncio.run(reaped())
        found = reconcile()
        running = found.running
    finally:
        connection.close()
        server.stop()
    print(
        json.dumps(
            {
                "kills": KILLS,
                "answered": len(answered.admitted) + len(answered.settled),
                "lost": missing,
                "ok": found.ok and running == 0,
                "findings": [str(finding) for finding in found.findings],
            }
        )
    )


if __name__ == "__main__":
    main()
