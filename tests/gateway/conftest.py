from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db.backends.signals import connection_created

from tests.gateway.house import Actor, House, Process, started_gateway, started_stub


@pytest.fixture(autouse=True)
def _orm_beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests look into the database between awaits; nothing else runs on their loop that could be held up.

    Django keeps a connection per context there, which no fixture can reach through Django: closed here directly.
    """
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    opened: list[Any] = []

    def remember(connection: Any, **_: Any) -> None:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            opened.append(connection.connection)

    connection_created.connect(remember)
    yield
    connection_created.disconnect(remember)
    for connection in opened:
        connection.close()


@pytest.fixture(scope="session")
def gateway(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with started_gateway(tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture(scope="session")
def stub(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A worker that counts at once: 20 ms a token."""
    from inference.model_store import fingerprint_of

    with started_stub(tmp_path_factory.mktemp("stub"), fingerprint_of(tiny_model_dir), 0.02) as process:
        yield process


@pytest.fixture
def bare_house(transactional_db: None, tiny_model_dir: Path) -> House:
    """No worker yet."""
    return House(tiny_model_dir)


@pytest.fixture
def house(bare_house: House, stub: Process) -> House:
    bare_house.worker(stub.url, "stub")
    return bare_house


@pytest.fixture
def acme(bare_house: House) -> Actor:
    return bare_house.actor("acme")


@pytest.fixture
def stranger(bare_house: House) -> Actor:
    return bare_house.actor("stranger")
