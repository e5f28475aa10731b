"""kill -9 at every step between admission and settlement: afterwards the books balance, and nothing is billed twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from tenants.admission import admit
from tenants.models import InferenceRequest, LedgerEntry
from tenants.reconciliation import reconcile
from tenants.settlement import checkpoint, reap, settle
from tests.tenants.test_exactness import fork, pool_on

pytestmark = [pytest.mark.usefixtures("grant_keys"), pytest.mark.slow]

DURABLE = Path(__file__).with_name("durable.py")

# What a gateway does with one request; it is killed after, or (…) while the database is held up in, each of them.
STEPS = ["nothing", "(admit)", "admit", "(checkpoint)", "checkpoint", "(settle)", "settle"]


@pytest.mark.parametrize("step", STEPS)
def test_a_gateway_killed_at_every_step(step: str, world: Any, dsn: str, new_id: Any) -> None:
    world.price(1_000_000, 0, 1_000_000)
    actor = world.actor("acme", max_concurrent=1, tokens_per_month=1000, key_limits={"budget_hard": 1000})
    access, model, request_id = actor.access(), world.served(), new_id()
    reached, tell = os.pipe()
    proceed, go = os.pipe()

    async def client() -> None:
        calls: dict[str, Callable[[Any], Any]] = {
            "admit": lambda pool: admit(
                pool, request_id=request_id, access=access, model=model, prompt_tokens=10, max_tokens=99
            ),
            "checkpoint": lambda pool: checkpoint(pool, {request_id: 7}, cached={request_id: 4}),
            "settle": lambda pool: settle(
                pool,
                request_id=request_id,
                prompt_tokens=10,
                cached_tokens=0,
                completion_tokens=9,
                outcome="completed",
                finish_reason="stop",
            ),
        }
        async with pool_on(dsn, 1) as pool:
            for name, call in calls.items():
                if step == "nothing":
                    break
                if step == f"({name})":
                    os.write(tell, b"!")
                    os.read(proceed, 1)
                await call(pool)
                if step == name:
                    break
            os.write(tell, b"!")
            await asyncio.sleep(60)

    connection.close()
    # Whoever holds these holds up the statement that the step sends.
    hold_up = {
        "(admit)": f"SELECT tenants_stand_in_line('{actor.tenant.pk}')",
        "(checkpoint)": f"SELECT 1 FROM tenants_inferencerequest WHERE id = '{request_id}' FOR UPDATE",
        "(settle)": "SELECT 1 FROM tenants_account FOR UPDATE",
    }
    process = fork.Process(target=lambda: asyncio.run(client()))
    process.start()
    assert os.read(reached, 1) == b"!"
    with psycopg.connect(dsn) as blocker:
        if step in hold_up:
            blocker.execute(hold_up[step])
            os.write(go, b"!")
            time.sleep(0.3)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()

    async def afterwards() -> None:
        later = datetime.now(UTC) + timedelta(seconds=31)
        async with pool_on(dsn, 1) as pool:
            for _ in range(50):  # what was sent is carried out, whoever is left to hear of it
                await reap(pool, now=later)
                await asyncio.sleep(0.02)
            await admit(pool, request_id=new_id(), access=access, model=model, prompt_tokens=1, max_tokens=1)

    asyncio.run(afterwards())
    found = reconcile()
    assert found.ok, found.findings
    entries = list(LedgerEntry.objects.filter(tenant=actor.tenant))
    assert len(entries) == (0 if step == "nothing" else 1)
    assert InferenceRequest.objects.filter(tenant=actor.tenant, state="running").count() == 1
    if step in ("admit", "(admit)"):
        assert (entries[0].kind, entries[0].cost) == ("void", 0)
    elif step == "checkpoint":
        assert (entries[0].prompt_tokens, entries[0].completion_tokens) == (10, 7)
        assert (entries[0].cached_tokens, entries[0].cost) == (4, 13), "what is cached costs nothing"
    elif step == "settle":
        assert (entries[0].prompt_tokens, entries[0].completion_tokens, entries[0].cost) == (10, 9, 19)
    elif step != "nothing":  # the server carries out what was sent, and may find its client gone before
        expected = {"(checkpoint)": {(0, 0), (10, 7)}, "(settle)": {(10, 7), (10, 9)}}[step]
        assert (entries[0].prompt_tokens, entries[0].completion_tokens) in expected


def test_a_postgresql_killed_in_the_middle_keeps_what_it_said(tmp_path: Path, tiny_model_dir: Path) -> None:
    """On a disk, five times: whatever was answered is there afterwards, and everything adds up."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")}
    environment |= {"LORAPLEX_DATA_DIR": str(tmp_path / "data"), "DJANGO_SETTINGS_MODULE": "gateway.settings"}
    done = subprocess.run(
        [sys.executable, str(DURABLE), str(tmp_path / "data"), str(tiny_model_dir)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == 5
    assert result["answered"] > 50
    assert result["lost"] == []
    assert result["ok"], result["findings"]
