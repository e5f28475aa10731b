"""A real worker on the tiny model, for what depends on numbers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.inference.front.actors import TinyWorker


@pytest.fixture(scope="session")
def tiny_worker(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyWorker]:
    worker = TinyWorker(tiny_model_dir, tmp_path_factory.mktemp("tiny-worker"))
    yield worker
    assert worker.stop() == 0


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session
