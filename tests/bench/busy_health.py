"""How long ``/health`` takes while the worker is full."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from load import drive
from worker import Setup

IN_FLIGHT = 32


async def seconds_under_load(url: str, setup: Setup, waves: int) -> list[float]:
    """Of every answer while :data:`IN_FLIGHT` streams are being served."""
    calls = setup.round(700, 2 * waves, mixed=False)
    script = str(Path(__file__).with_name("health_poll.py"))
    poller = await asyncio.create_subprocess_exec(
        sys.executable, script, url.rpartition(":")[2], stdout=asyncio.subprocess.PIPE
    )
    try:
        await drive(url, calls, in_flight=IN_FLIGHT)
    finally:
        poller.terminate()
        said, _ = await poller.communicate()
    if poller.returncode:
        raise SystemExit("health: it was not answered, or not with 200")
    seconds: list[float] = json.loads(said)
    return seconds
