"""kill -9 of every process, at every step of a streamed request: afterwards the books balance.

One installation under ``up``, which starts again what dies. A step is what the client has seen: nothing yet, the first
chunk, the middle, the end. Whatever was killed, each admitted request ends in exactly one ledger entry, what a client
received whole is billed exactly, and no lease outlives its expiry. The books are looked at once, after all kills: a
lease that a kill left behind runs out while the next process is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import httpx
import psycopg
import pytest

from gateway.embedded.sockets import postgres_dsn
from tests.ops.installation import PROJECT, Up, environment, start, until

pytestmark = pytest.mark.slow

TOKENS = 48
STEPS = {"sent": 0, "first": 1, "middle": TOKENS // 2, "end": None}
"""Chunks after which the kill comes; ``None``: as the answer ends."""
VICTIMS = {
    "gateway": "gateway.asgi",
    "worker front": "-m inference",
    "celery": "celery",
    "postgresql": "postgres -D",
    "valkey": "valkey",
}


@dataclass
class Answer:
    """What one client saw. :param whole: it ended as it should."""

    request_id: UUID | None
    tokens: int
    whole: bool


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, smollm_dir: Path) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("sweep") / "var"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / smollm_dir.name).symlink_to(smollm_dir)
    running = start(folder)
    yield running
    running.process.send_signal(signal.SIGINT)
    running.process.wait(60)


@pytest.fixture(scope="module")
def answers() -> list[tuple[str, Answer]]:
    """What came of each request that lost a process, and which one."""
    return []


def ask(up: Up, kill_after: int | None, kill: str | None, tokens: int = TOKENS) -> Answer:
    """Stream one answer; kill when so many chunks have come, or at the end."""
    tenant = up.demo["tenants"][0]
    body = {"model": up.demo["base_model"], "prompt": "Once upon a time", "max_tokens": tokens, "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    headers = {"Authorization": f"Bearer {tenant['api_key']}"}
    answer = Answer(None, 0, False)
    url = f"http://127.0.0.1:{up.port}/v1/completions"
    try:
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response:
            if kill is not None and kill_after == 0:
                end(up, kill)
            _read(response, answer, lambda seen: kill is not None and seen == kill_after and end(up, kill))
            if kill is not None and kill_after is None:
                end(up, kill)
    except httpx.HTTPError:
        pass
    return answer


def _read(response: httpx.Response, answer: Answer, chunk_came) -> None:
    request_id = response.headers.get("x-request-id")
    answer.request_id = UUID(request_id) if request_id else None
    chunks = 0
    for line in response.iter_lines():
        if line == "data: [DONE]":
            answer.whole = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return
            if event.get("usage"):
                answer.tokens = event["usage"]["completion_tokens"]
            chunks += bool(event["choices"])
            chunk_came(chunks)


def end(up: Up, victim: str) -> None:
    os.kill(up.pid_of(VICTIMS[victim]), signal.SIGKILL)


def serves(up: Up) -> bool:
    return ask(up, None, None, tokens=1).whole


def rows(up: Up, query: str) -> list[tuple]:
    with psycopg.connect(postgres_dsn(up.data_dir), connect_timeout=5) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("victim", VICTIMS)
def test_after_kills_at_every_step_it_serves_again(up: Up, victim: str, answers: list[tuple[str, Answer]]) -> None:
    for step, chunks in STEPS.items():
        before = up.pid_of(VICTIMS[victim])
        answer = ask(up, chunks, victim)
        answers.append((f"{victim} at {step}", answer))
        until(lambda before=before: _started_again(up, victim, before), 60, f"{victim} is back after {step}")
        until(lambda: serves(up), 120, f"served again after {victim} died at {step}")
        assert answer.whole or victim not in {"celery", "valkey"}, "inference does not need it"


def test_then_each_request_is_billed_once(up: Up, answers: list[tuple[str, Answer]]) -> None:
    assert answers, "the kills come before"
    until(lambda: not rows(up, "SELECT 1 FROM tenants_inferencerequest WHERE state = 'running'"), 90, "nothing runs")
    billed = dict(rows(up, "SELECT request_id, completion_tokens FROM tenants_ledgerentry"))
    ((admitted,),) = rows(up, "SELECT count(*) FROM tenants_inferencerequest")
    assert len(billed) == admitted
    for when, answer in answers:
        if answer.whole:
            assert answer.request_id is not None
            assert billed[answer.request_id] == answer.tokens == TOKENS, when
    assert all(0 <= tokens <= TOKENS for tokens in billed.values())
    command = [sys.executable, str(PROJECT / "manage.py"), "reconcile", "--json"]
    env = environment(up.data_dir, up.port)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _started_again(up: Up, victim: str, before: int) -> bool:
    try:
        return up.pid_of(VICTIMS[victim]) != before
    except ValueError:  # none at the moment
        time.sleep(0.2)
        return False
