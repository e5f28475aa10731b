"""Batches: input files, and the Celery process that runs them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from django.utils import timezone

from gateway.embedded.process import last_lines, spawn, stop
from tenants import batches, files
from tenants.actors import Actor as AuditActor
from tenants.models import Batch, File
from tests.gateway.house import Actor, House, wait_for

CHAT = "/v1/chat/completions"
BY_TEST = AuditActor("command", "tests")


def line(custom_id: str, *, url: str = CHAT, **body: Any) -> dict[str, Any]:
    fields = {"messages": [{"role": "user", "content": f"Say {custom_id}"}], "max_tokens": 3, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": fields}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join((text if isinstance(text, bytes) else json.dumps(text).encode()) + b"\n" for text in lines)


def input_file(actor: Actor, content: bytes, **expiry: Any) -> File:
    path = files.incoming()
    path.write_bytes(content)
    kept = timedelta(**expiry) if expiry else files.KEPT
    return files.receive(BY_TEST, actor.tenant, path, "input.jsonl", kept)


def new_batch(actor: Actor, lines: list[Any] | bytes, endpoint: str = CHAT) -> Batch:
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    file = input_file(actor, content)
    return batches.create(BY_TEST, actor.key, input_file_id=file.pk, endpoint=endpoint)


def again(batch: Batch) -> Batch:
    return Batch.objects.unscoped().get(pk=batch.pk)


def ended(batch: Batch, seconds: float = 60.0) -> Batch:
    """The batch once it is finished."""
    return wait_for(lambda: (found := again(batch)).status not in Batch.UNFINISHED and found, seconds)


def content(actor: Actor, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = files.content_path(files.find(actor.tenant, file_id)).read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(each) for each in text.splitlines()]


def soon_over(batch: Batch, seconds: float) -> None:
    Batch.objects.unscoped().filter(pk=batch.pk).update(expires_at=timezone.now() + timedelta(seconds=seconds))


@contextmanager
def started_celery(folder: Path, *, beat: bool = True) -> Iterator[Popen[bytes]]:
    """The process that `up` starts for batches, with a clock of its own unless told otherwise."""
    log = folder / f"batches-{timezone.now():%H%M%S%f}.log"
    command = [sys.executable, "-m", "celery", "-A", "gateway", "worker", "--pool", "solo", "--queues", "batches"]
    command += ["--hostname", "batches@%h", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
    process = spawn(command, log)
    clock = None
    try:
        wait_for(lambda: process.poll() is not None or " ready." in log.read_text(), 60)
        assert process.poll() is None, last_lines(log)
        if beat:
            clock = spawn(
                [sys.executable, "-m", "celery", "-A", "gateway", "beat", "--schedule", str(folder / "beat")],
                folder / "beat.log",
            )
        yield process
    finally:
        if clock is not None:
            stop(clock)
        stop(process, signal.SIGTERM)


@pytest.fixture
def celery(house: House, tmp_path: Path) -> Iterator[Popen[bytes]]:
    with started_celery(tmp_path) as process:
        yield process


Lines = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def lines(house: House) -> Lines:
    """``lines(5)``: so many requests of the base model, named 0, 1, …"""

    def make(count: int, **body: Any) -> list[dict[str, Any]]:
        return [line(str(number), model=house.base.name, **body) for number in range(count)]

    return make
