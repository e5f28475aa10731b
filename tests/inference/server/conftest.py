"""Workers that a test may break: a real front over a fake core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from inference.model_store import fingerprint_of
from tests.inference.front.actors import Signer, WorkerProcess

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(smollm_dir: Path, tmp_path: Path) -> Iterator[Start]:
    """``start(*core options)``: a worker of the test's own, stopped at its end."""
    workers: list[WorkerProcess] = []

    def start(*options: str) -> WorkerProcess:
        signer = Signer(fingerprint_of(smollm_dir))
        workers.append(WorkerProcess(smollm_dir, tmp_path / str(len(workers)), signer, *options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session
