"""Thousands of requests through one worker: the memory of its two processes before and after, and what it still holds.

    python tests/bench/soak.py [--requests 20000] [--model DIR] [--options "--threads 1"]

Short prompts and answers, four tenants, the base and more adapters than slots; one in twenty is dropped by its client
in the middle, one in twenty is wrong. Without ``--model`` on a two-layer model made for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from processes import ROOT, Process
from worker import Setup

sys.path.insert(0, str(ROOT))

IN_FLIGHT = 16
TENANTS = 4
SLOTS = 4


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def processes(front: int) -> dict[str, int]:
    """Process ids of the front and of its core."""
    children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
    for child in children:
        if "inference.core.process" in Path(f"/proc/{child}/cmdline").read_text():
            return {"front": front, "core": int(child)}
    raise SystemExit(f"soak: {front} has no core")


class Traffic:
    """Makes requests, the same for the same seed, and counts how they ended."""

    def __init__(self, url: str, setup: Setup, vocabulary: int) -> None:
        self.url, self.setup, self.vocabulary = url, setup, vocabulary
        self.rng = random.Random(0)
        self.outcomes = Counter[str]()
        self.adapters = [None, *setup.digests]

    async def send(self, count: int) -> None:
        """``count`` requests, :data:`IN_FLIGHT` at a time."""
        left = iter(range(count))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:

            async def lane() -> None:
                for _ in left:
                    await self.one(session)

            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(lane())

    async def one(self, session: aiohttp.ClientSession) -> None:
        rng = self.rng
        prompt = [rng.randrange(3, self.vocabulary) for _ in range(rng.randint(4, 40))]
        tenant = f"tenant{rng.randrange(TENANTS)}"
        call = self.setup.call(prompt, rng.choice(self.adapters), rng.randint(1, 6), tenant)
        kind = rng.random()
        if kind < 0.05:
            call.body["temperature"] = -1
        headers = {"Authorization": f"Bearer {call.bearer()}"}
        data = orjson.dumps(call.body)
        async with session.post(f"{self.url}/v1/completions", data=data, headers=headers) as response:
            if kind > 0.95:
                self.outcomes["dropped"] += 1
                response.close()
                return
            text = await response.text()
        whole = response.status == 200 and text.rstrip().endswith("[DONE]")
        self.outcomes["whole" if whole else str(response.status)] += 1


async def held(url: str) -> dict[str, float]:
    """What the worker still has; ``SystemExit`` unless it falls idle."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{url}/metrics") as response:
                lines = (await response.text()).splitlines()
            values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:")}
            found = {name: values[name] for name in names}
            if not any(found.values()):
                return found
            await asyncio.sleep(0.1)
    raise SystemExit(f"soak: the worker still holds something: {found}")


def soak(process: Process, setup: Setup, requests: int) -> dict[str, Any]:
    """Megabytes of each process before, at each quarter and so after; the first fifth, at most 2,000, only warms up."""
    url = process.wait_for("ready ").split()[1]
    vocabulary = json.loads((setup.model_dir / "config.json").read_text())["vocab_size"]
    traffic = Traffic(url, setup, vocabulary)
    asyncio.run(traffic.send(min(2000, requests // 5)))
    asyncio.run(held(url))
    pids = processes(process.child.pid)
    megabytes = {name: [resident(pid) / 1e6] for name, pid in pids.items()}
    traffic.outcomes.clear()
    started = time.monotonic()
    for _ in range(4):
        asyncio.run(traffic.send(requests // 4))
        asyncio.run(held(url))
        for name, pid in pids.items():
            megabytes[name].append(resident(pid) / 1e6)
    return {
        "seconds": round(time.monotonic() - started, 1),
        "outcomes": dict(traffic.outcomes),
        **{name: [round(value, 1) for value in values] for name, values in megabytes.items()},
    }


def main() -> None:
    from reference import write_adapters

    from tests.inference.tiny_model import build_tiny_model

    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loraplex-soak-") as name:
        folder = Path(name)
        model = options.model.resolve() if options.model else build_tiny_model(folder / "tiny")
        write_adapters(model, folder / "adapters")
        setup = Setup.make(model, folder / "adapters", folder)
        with setup.process(folder, options.threads, "--slots", str(SLOTS)) as process:
            print(json.dumps(soak(process, setup, options.requests)))


if __name__ == "__main__":
    main()
