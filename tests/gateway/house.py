"""A gateway process, workers behind it and tenants in front: what the tests of this folder and its neighbours share."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any
from uuid import uuid4

from django.db import connection

from fleet.models import Worker
from gateway.embedded.process import last_lines, spawn, stop
from gateway.installation import SOCKETS
from inference.model_store import fingerprint_of
from tenants.models import Adapter, AdapterVersion, ApiKey, BaseModel, LedgerEntry, ModelAllowance, Plan, Tenant

STUB = Path(__file__).with_name("stub_worker.py")
ROUND_SECONDS = 0.4
"""Between two rounds of the overview's sockets in a gateway started here."""


def wait_for(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of ``condition``; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(0.02)
    return value


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass(frozen=True)
class Process:
    url: str
    process: Popen[bytes]
    log: Path


@contextmanager
def started_gateway(folder: Path, *options: str, **settings: str) -> Iterator[Process]:
    """A real uvicorn process on the test database; ``quick_gateway.py`` says in what it differs.

    :param options: more of uvicorn's. :param settings: environment variables beside this process's own.
    """
    port, log = free_port(), folder / f"gateway-{uuid4().hex[:6]}.log"
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(STUB.parent), "quick_gateway:application"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-access-log", "--log-level", "info"]
    command += [*SOCKETS, *options]
    process = spawn(command, log, env={**os.environ, "ROUND_SECONDS": str(ROUND_SECONDS), **settings})
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: process.poll() is not None or _answers(f"{url}/health"), 60)
        assert process.poll() is None, last_lines(log)
        yield Process(url, process, log)
    finally:
        stop(process)


@contextmanager
def started_stub(folder: Path, fingerprint: str, interval: float = 0.0) -> Iterator[Process]:
    log = folder / f"stub-{uuid4().hex[:6]}.log"
    process = spawn([sys.executable, str(STUB), fingerprint, "--interval", str(interval)], log)
    try:
        wait_for(lambda: process.poll() is not None or "ready " in log.read_text(), 30)
        assert process.poll() is None, last_lines(log)
        yield Process(log.read_text().split("ready ")[1].split()[0], process, log)
    finally:
        stop(process)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@dataclass(frozen=True)
class Actor:
    tenant: Tenant
    key: ApiKey
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


class House:
    """Rows in the test database: a base model from a store directory, tenants with keys, workers."""

    def __init__(self, model_dir: Path) -> None:
        self.fingerprint = fingerprint_of(model_dir)
        self.plan = Plan.objects.create(name=f"plan-{uuid4().hex[:8]}")
        self.base = BaseModel.objects.create(
            name=model_dir.name,
            fingerprint=self.fingerprint,
            directory=str(model_dir),
            context_length=512,
            config=json.loads((model_dir / "config.json").read_text()),
        )

    def actor(self, slug: str, **limits: Any) -> Actor:
        tenant = Tenant.objects.create(slug=slug, display_name=slug.title(), plan=self.plan, **limits)
        ModelAllowance.objects.create(tenant=tenant, base_model=self.base)
        key, secret = ApiKey.issue(tenant)
        return Actor(tenant, key, secret.reveal())

    def adapter(self, actor: Actor, name: str, digest: str | None = None) -> str:
        """A ready adapter; returns the id under which it is called. Nothing lies in the store for it."""
        adapter = Adapter.objects.create(tenant=actor.tenant, name=name, base_model=self.base)
        version = AdapterVersion.objects.create(
            adapter=adapter, number=1, state="ready", digest=digest or uuid4().hex * 2
        )
        adapter.current = version
        adapter.save()
        return f"{actor.tenant.slug}/{name}"

    def worker(self, url: str, name: str | None = None) -> Worker:
        return Worker.objects.create(name=name or f"w-{uuid4().hex[:8]}", url=url, base_model=self.base)

    def ledger(self, actor: Actor) -> list[LedgerEntry]:
        return list(LedgerEntry.objects.filter(tenant=actor.tenant).order_by("created_at"))

    def one_row(self, actor: Actor, seconds: float = 10.0) -> LedgerEntry:
        """The tenant's one ledger row, once it is there and nothing runs any more."""
        wait_for(lambda: self.ledger(actor) and not self.running(actor), seconds)
        (row,) = self.ledger(actor)
        return row

    def running(self, actor: Actor) -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM tenants_inferencerequest WHERE tenant_id = %s AND state = 'running'",
                [actor.tenant.pk],
            )
            return cursor.fetchone()[0]
