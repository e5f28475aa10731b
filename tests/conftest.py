"""What every test may lean on. The servers themselves are started by ``gateway.embedded.pytest_plugin``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest
from asgiref.sync import SyncToAsync
from django.conf import settings
from django.db import OperationalError, connections
from django.db.backends.postgresql.operations import DatabaseOperations
from psycopg.errors import DeadlockDetected
from psycopg_pool import AsyncConnectionPool

from gateway.embedded.process import last_lines, spawn, stop
from tests.turns import pytest_configure_node, pytest_runtest_protocol, pytest_unconfigure  # noqa: F401

if not Path("/dev/nvidiactl").exists():
    # Triton's kernels run in its interpreter where there is no GPU. It looks when it is imported, which other
    # libraries do too, so that it has to be said before any of them.
    os.environ["TRITON_INTERPRET"] = "1"

PROJECT = Path(__file__).resolve().parents[1]
MODEL_CACHE = PROJECT / "var" / "models"
READY_TIMEOUT = 180.0
CONSTANT_TABLES = {"django_content_type", "auth_permission"}
"""Filled by migrations from the models alone: emptied, they would be filled again, the same, after each test."""

SMALL_DATABASE = 4 << 20
"""Bytes of all tables up to which they are emptied by deleting; deleted rows count until a vacuum."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: beside each other, none of them should be what all others wait for at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """The whole server belongs to this run, so tests use the database's own name.

    Child processes (gateway, worker, Celery) then see the same rows without being told where.
    """
    database = settings.DATABASES["default"]
    database.setdefault("TEST", {})["NAME"] = database["NAME"]


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """The one thread of ``sync_to_async`` has a connection of its own, with which the database could not be removed."""
    yield
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()


@pytest.fixture(scope="session", autouse=True)
def _quick_and_patient_flush() -> Iterator[None]:
    """After a test that commits, all tables are emptied: for some hundreds of tests, so it has to be quick.

    That may meet a gateway that is just settling: one of the two is told of a deadlock. When it is the test's side, it
    tries again; nothing of a refused one remains. The ledger refuses to be emptied by triggers, which only a superuser
    can pass, and only on purpose.
    """
    flush = DatabaseOperations.execute_sql_flush

    def patient(self: DatabaseOperations, sql_list: list[str]) -> None:
        sql_list = ["SET LOCAL session_replication_role = replica;", *sql_list]
        for _ in range(5):
            try:
                return flush(self, sql_list)
            except OperationalError as error:
                if not isinstance(error.__cause__, DeadlockDetected):
                    raise
        return flush(self, sql_list)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "execute_sql_flush", patient)
        patch.setattr(DatabaseOperations, "sql_flush", _emptying)
        yield


def _emptying(
    self: DatabaseOperations, style: object, tables: Sequence[str], *, reset_sequences: bool = False, **_: bool
) -> list[str]:
    """TRUNCATE makes each table and index a new file: 180 ms for all, where deleting a few rows takes 5 ms.

    The lock is TRUNCATE's: who is still writing is waited for, so that none of it is left over.
    """
    names = [self.quote_name(table) for table in tables if table not in CONSTANT_TABLES]
    every = ", ".join(names)
    with self.connection.cursor() as cursor:
        cursor.execute("SELECT sum(pg_relation_size(t.named::regclass)) FROM unnest(%s::text[]) AS t (named)", [names])
        ((size,),) = cursor.fetchall()
    if reset_sequences or (size or 0) > SMALL_DATABASE:
        return [f"TRUNCATE {every}{' RESTART IDENTITY' if reset_sequences else ''};"]
    return [f"LOCK TABLE {every} IN ACCESS EXCLUSIVE MODE;" + "".join(f"DELETE FROM {name};" for name in names)]


@pytest.fixture
async def db_pool(transactional_db: None) -> AsyncIterator[AsyncConnectionPool]:
    """An open psycopg pool on the test database, as the gateway has one."""
    from tenants.db import open_pool

    async with open_pool() as pool:
        yield pool


@dataclass(frozen=True, slots=True)
class GrantKeys:
    private: Path
    public: Path


@pytest.fixture(scope="session")
def grant_keys() -> GrantKeys:
    """The pair that this run's gateway signs with and its workers verify with."""
    return GrantKeys(settings.GRANT_PRIVATE_KEY_FILE, settings.GRANT_PUBLIC_KEY_FILE)


@pytest.fixture(scope="session")
def smollm_dir() -> Path:
    """The registered store directory of SmolLM2-135M-Instruct; fetched once into the checkout's var/."""
    from inference.fetch_model import fetch

    return fetch(store=MODEL_CACHE, downloads=PROJECT / "var" / "downloads")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a real tokenizer: registered like any model, and quick."""
    from tests.inference.tiny_model import build_tiny_model

    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker that serves. ``base`` is the name it serves the base model under."""

    url: str
    base: str
    model_dir: Path
    log: Path
    process: Popen[bytes]


@pytest.fixture(scope="session")
def worker(
    smollm_dir: Path, grant_keys: GrantKeys, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    """A real worker process on SmolLM2, reading adapters from this run's store."""
    with serving(smollm_dir, grant_keys, tmp_path_factory.mktemp("worker") / "worker.log") as worker:
        yield worker


@contextmanager
def serving(smollm_dir: Path, grant_keys: GrantKeys, log: Path, *options: str) -> Iterator[WorkerProcess]:
    """A worker process that ends with the block. :param options: of its command line."""
    settings.ADAPTER_STORE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "inference", "--model", smollm_dir, "--adapter-store", settings.ADAPTER_STORE]
    command += ["--grant-key", grant_keys.public, "--host", "127.0.0.1", "--port", "0", *options]
    process = spawn(command, log)
    try:
        yield WorkerProcess(_ready_url(process, log), smollm_dir.name, smollm_dir, log, process)
    finally:
        stop(process, signal.SIGTERM)


def _ready_url(process: Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + READY_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("ready http"):
                return line.split()[1]
        time.sleep(0.1)
    pytest.fail(f"the worker did not become ready (exit status {process.poll()}); its log ends:\n{last_lines(log)}")
