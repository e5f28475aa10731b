"""The gateway's own cost: one process between a load generator and a worker that only counts.

Everything is on: authentication, tokenising, admission against every limit, checkpoints, settlement, a durable embedded
PostgreSQL. Streams of 64 tokens, one each 20 ms, beside the same streams straight from the stub; streams begin at
random moments, and for ``burst`` all at the same one. Then 1,000 slow streams at once: threads, memory, and what their
database connections do. The ledger has to agree with what was streamed. One JSON object on the last line of stdout.

    python tests/bench/gateway_relay.py --model DIR --folder DIR [--repeats N] [--crowd N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import django
import orjson
import uvloop
from admission import LIMITS, command
from processes import ROOT, Process, free_port, own_settings
from workload import PROMPT_TOKENS

TOKENS, INTERVAL = 64, 0.02
CROWD_TOKENS, CROWD_INTERVAL = 40, 0.5
TENANTS = 8


@dataclass(frozen=True, slots=True)
class Round:
    """:ivar firsts: seconds to the first token of each stream. :ivar tokens: streamed altogether."""

    firsts: list[float]
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Target:
    """Where streams come from: ``body`` and ``keys`` are what it expects; a key for each tenant."""

    url: str
    body: dict[str, Any]
    keys: list[str]

    async def stream(self, session: aiohttp.ClientSession, number: int, tokens: int) -> tuple[float, int]:
        """Seconds to the first token, and how many came."""
        data = orjson.dumps({**self.body, "max_tokens": tokens, "stream": True})
        headers = {"Authorization": f"Bearer {self.keys[number % len(self.keys)]}", "Content-Type": "application/json"}
        started, first, count = time.perf_counter(), 0.0, 0
        async with session.post(f"{self.url}/v1/completions", data=data, headers=headers) as response:
            if response.status != 200:
                raise SystemExit(f"{self.url}: {response.status} {(await response.text())[:500]}")
            end = b""
            while chunk := await response.content.readany():
                first = first or time.perf_counter() - started
                count += chunk.count(b'"text":" ')
                end = (end + chunk)[-32:]
            if not end.endswith(b"data: [DONE]\n\n"):
                raise SystemExit(f"{self.url}: a stream broke off: {end!r}")
        return first, count

    async def load(self, streams: int, each: int, *, burst: bool = False, tokens: int = TOKENS) -> Round:
        """``streams`` at a time, ``each`` one after the other."""
        chance = random.Random(streams)
        firsts: list[float] = []
        total = 0

        async def lane(session: aiohttp.ClientSession, number: int) -> None:
            nonlocal total
            for _ in range(each):
                if not burst:
                    await asyncio.sleep(chance.random() * TOKENS * INTERVAL)
                first, count = await self.stream(session, number, tokens)
                firsts.append(first)
                total += count

        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            started = time.perf_counter()
            await asyncio.gather(*(lane(session, number) for number in range(streams)))
            return Round(firsts, total, time.perf_counter() - started)


class Gateway:
    """One gateway process, and what the kernel says of it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        argv = [*(sys.executable, "-m", "uvicorn", "gateway.asgi:application", "--host", "127.0.0.1")]
        argv += ["--port", self.url.rpartition(":")[2], "--no-access-log", "--timeout-keep-alive", "75"]
        self.process = Process(argv, folder / "gateway.log")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.child.pid}/status").read_text()
        return int(text.partition(f"{name}:")[2].split()[0])

    @property
    def threads(self) -> int:
        return self._status("Threads")

    @property
    def resident_kib(self) -> int:
        return self._status("VmRSS")


async def busy_connections() -> int:
    """Of the gateway's: those that are in a transaction or run a statement."""
    from django.conf import settings
    from psycopg import AsyncConnection

    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'loraplex' AND state <> 'idle'"
    async with await AsyncConnection.connect(settings.DATABASE_DSN, autocommit=True) as connection:
        row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return int(row[0])


async def crowd(gateway: Gateway, target: Target, streams: int) -> tuple[dict[str, float], int]:
    """``streams`` slow ones at once, looked at in the middle."""
    before = gateway.resident_kib
    running = asyncio.create_task(target.load(streams, 1, tokens=CROWD_TOKENS))
    await asyncio.sleep(CROWD_TOKENS * CROWD_INTERVAL * 0.6)
    cpu, started = gateway.cpu_seconds(), time.perf_counter()
    busy = []
    for _ in range(20):
        busy.append(await busy_connections())
        await asyncio.sleep(0.1)
    seconds = time.perf_counter() - started
    found = {
        "crowd_threads": float(gateway.threads),
        "crowd_kib_per_stream": (gateway.resident_kib - before) / streams,
        "crowd_busy_connections": statistics.mean(busy),
        "crowd_cpu_share": 100 * (gateway.cpu_seconds() - cpu) / seconds,
    }
    return found, (await running).tokens


def p50(round_: Round) -> float:
    return 1000 * statistics.median(round_.firsts)


async def measure(gateway: Gateway, ours: Target, direct: Target, repeats: int) -> tuple[dict[str, list[float]], int]:
    found: dict[str, list[float]] = {}
    streamed = (await ours.load(20, 2, burst=True)).tokens  # warms up
    await direct.load(20, 1)
    for streams, burst, name in ((1, False, "1"), (20, False, "20"), (50, False, "50"), (50, True, "50_burst")):
        each = max(2, 100 // streams)
        for _ in range(repeats):
            bare = await direct.load(streams, each if streams > 1 else 5, burst=burst)
            cpu = gateway.cpu_seconds()
            relayed = await ours.load(streams, each if streams > 1 else 5, burst=burst)
            cpu = gateway.cpu_seconds() - cpu
            streamed += relayed.tokens
            found.setdefault(f"added_ttft_p50_{name}", []).append(p50(relayed) - p50(bare))
            found.setdefault(f"tokens_per_cpu_second_{name}", []).append(relayed.tokens / max(cpu, 0.01))
    return found, streamed


@contextmanager
def running(options: argparse.Namespace) -> Iterator[tuple[Gateway, list[str], str, list[str]]]:
    """PostgreSQL, seeded; two stubs; the gateway. Yields it, the stubs' addresses, the model's name and keys."""
    from django.core.management import call_command

    from gateway.embedded.postgres import Postgres
    from inference.model_store import fingerprint_of

    database = Postgres(options.folder, options.folder / "postgres.log")
    database.start()
    stub = str(ROOT / "tests/gateway/stub_worker.py")
    print_of_model = fingerprint_of(options.model)
    stubs = [
        Process([sys.executable, stub, print_of_model, "--interval", str(interval)], options.folder / f"{name}.log")
        for name, interval in (("stub", INTERVAL), ("slow", CROWD_INTERVAL))
    ]
    gateway = Gateway(options.folder)
    try:
        call_command("migrate", verbosity=0)
        name = command("register_model", "--directory", str(options.model))["model"]
        command("set_price", name, "--input", "150000", "--cached-input", "75000", "--output", "600000")
        keys = []
        for number in range(TENANTS):
            command("create_tenant", f"bench{number}")
            command("set_limits", f"bench{number}", *LIMITS)
            keys.append(command("issue_key", f"bench{number}")["api_key"])
        with stubs[0], stubs[1], gateway.process:
            urls = [stub.wait_for("ready ").split()[1] for stub in stubs]
            gateway.process.wait_for("Application startup complete")
            yield gateway, urls, name, keys
    finally:
        database.stop()


def serve_from(url: str, model: str) -> None:
    """Make the worker at ``url`` the only one, and give the gateway time to see it."""
    from fleet.models import Worker
    from tenants.models import BaseModel

    Worker.objects.all().delete()
    Worker.objects.create(name=f"stub-{url.rpartition(':')[2]}", url=url, base_model=BaseModel.objects.get(name=model))
    time.sleep(5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--crowd", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=1, help="whose keys the measured streams use")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    environment = own_settings(options.folder)
    os.environ.clear()
    os.environ.update(environment)
    django.setup()
    with running(options) as (gateway, (fast, slow), model, keys):
        prompt = "hello " * PROMPT_TOKENS
        ours = Target(gateway.url, {"model": model, "prompt": prompt}, keys[: options.tenants])
        direct = Target(fast, {"model": model, "prompt": [1] * PROMPT_TOKENS}, ["x"])
        serve_from(fast, model)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found, streamed = runner.run(measure(gateway, ours, direct, options.repeats))
        if options.crowd:
            serve_from(slow, model)
            everybody = Target(gateway.url, ours.body, keys)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                seen, more = runner.run(crowd(gateway, everybody, options.crowd))
            found |= {name: [value] for name, value in seen.items()}
            streamed += more
        books = command("reconcile")
        billed = sum(command("usage", f"bench{number}")["completion_tokens"] for number in range(TENANTS))
        if billed != streamed or books["running"]:
            raise SystemExit(f"{streamed} tokens were streamed, {billed} are in the ledger: no figures")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
