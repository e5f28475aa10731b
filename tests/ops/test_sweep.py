"""kill -9 of every process, at every step of a streamed request: afterwards the books balance.

One installation under ``up``, which starts again what dies; the steps are in ``steps.py``. Whatever was killed, each
admitted request ends in exactly one ledger entry: for what its client received, but for what a second of it may lose
where the gateway or the database died. What a client received whole is billed exactly, and no lease outlives its
expiry. The books are looked at once, after all kills: a lease that a kill left behind runs out while the next process
is killed. So does the wait for a check of an adapter that came while the broker was away.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from gateway.demo import examples_dir
from tests.ops.installation import Up, start, until
from tests.ops.steps import BEFORE_ADMISSION, BEFORE_TOKENS, FEW, STEPS, TOKENS, Answer, End, admitted, ask, rows
from tests.stopped import stop
from tests.tenants.adapter_parts import as_json, contents
from tests.tenants.receiver import Receiver, receiver

pytestmark = pytest.mark.slow

LOST_SECONDS = 2.0
"""A second of a stream's tokens, and what a busy machine adds to it."""
IN_FLIGHT = 8
"""Tokens that a killed gateway may have counted and not handed out."""
REAPED = timedelta(seconds=15)
"""After a lease's expiry, or after what reaps came back: it looks every 5 s."""


@dataclass(frozen=True)
class Victim:
    """:param services: their names in what ``up`` prints. :param parts: of their command lines."""

    services: tuple[str, ...]
    parts: tuple[str, ...]
    steps: tuple[str, ...] = tuple(STEPS)


VICTIMS = {
    "celery": Victim(
        ("celery", "beat"),
        ("worker --concurrency 1 --loglevel", "-A gateway beat"),
        ("admission", "middle", "settlement", "end"),
    ),
    "valkey": Victim(("Valkey",), ("valkey-server",)),
    "postgresql": Victim(("PostgreSQL",), ("postgres -D",)),
    "gateway": Victim(("gateway",), ("gateway.asgi",)),
    # While these are killed, the leases of what was killed above run out.
    "worker front": Victim(("worker",), ("-m inference --model",), ("admission", "prefill", "middle", "settlement")),
    "worker core": Victim(("worker",), ("-m inference.core.process",), ("prefill", "middle")),  # the front goes with it
}
"""Celery's are the reaper and its clock. A worker is killed where it has a part in the request."""

ASIDE = ("celery", "valkey")
"""Inference needs neither."""


@dataclass
class Kill:
    """:ivar asked: tokens. :ivar request_id: of what it was killed at, where that was admitted. :ivar back: when the
    victim was ready again."""

    victim: str
    step: str
    asked: int
    answer: Answer
    end: End
    request_id: UUID | None
    back: datetime


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, smollm_dir: Path) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("sweep") / "var"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / smollm_dir.name).symlink_to(smollm_dir)
    loopback = {"LORAPLEX_WEBHOOK_HTTP": "true", "LORAPLEX_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    running = start(folder, script=Path(__file__).with_name("quick_up.py"), **loopback)
    yield running
    running.process.send_signal(signal.SIGINT)
    running.process.wait(60)


@pytest.fixture(scope="module")
def kills() -> list[Kill]:
    return []


@pytest.fixture(scope="module")
def manager(up: Up) -> Iterator[httpx.Client]:
    """A tenant's own program."""
    key = json.loads(up.manage("issue_key", "acme", "--scope", "manage", "--json"))["api_key"]
    with httpx.Client(
        base_url=f"http://127.0.0.1:{up.port}", headers={"Authorization": f"Bearer {key}"}, timeout=60
    ) as client:
        yield client


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


def serves(up: Up) -> bool:
    return ask(up, 1).whole


def restarts(up: Up, victim: str) -> list[int]:
    """How often each of its services came back."""
    return [up.said(f"{service} is ready again") for service in VICTIMS[victim].services]


def is_back(up: Up, victim: str, before: list[int]) -> bool:
    return all(now > then for now, then in zip(restarts(up, victim), before, strict=True))


def kill(up: Up, victim: str, step: str) -> Kill:
    """During a request. Returns once everything is there again."""
    before, known = restarts(up, victim), admitted(up)
    end = End(up, VICTIMS[victim].parts)
    asked = TOKENS if step == "middle" else FEW
    answer = ask(up, asked, STEPS[step], end)
    assert end.at is not None, f"{victim} was not killed at {step}"
    assert step not in BEFORE_TOKENS or not answer.seen or end.at < answer.seen[0], f"{step} came too late"
    until(lambda: is_back(up, victim, before), 90, f"{victim} is back after {step}")
    until(lambda: serves(up), 120, f"served again after {victim} died at {step}")
    found = admitted(up) - known
    assert len(found) <= 1
    return Kill(victim, step, asked, answer, end, next(iter(found), None), datetime.now(UTC))


def add_adapter(manager: httpx.Client, name: str) -> None:
    files = contents(examples_dir() / "json")
    answer = manager.post("/api/uploads", json={"adapter": name, "files": as_json(files)})
    assert answer.status_code == 201, answer.text
    upload = f"/api/uploads/{answer.json()['id']}"
    for file, data in files.items():
        assert manager.put(f"{upload}/files/{file}", params={"offset": 0}, content=data).status_code == 200
    answer = manager.post(f"{upload}/complete")
    assert (answer.status_code, answer.json()["state"]) == (200, "completed"), answer.text


def test_without_valkey_inference_goes_on_and_what_was_asked_for_is_done_after(
    up: Up, manager: httpx.Client, server: Receiver
) -> None:
    """The adapter's check is what the last test waits for."""
    hook = manager.post("/api/webhooks", json={"url": server.url, "events": ["*"]})
    assert hook.status_code == 201, hook.text
    before = restarts(up, "valkey")
    stop(up.process.pid)  # or it would start Valkey again
    try:
        End(up, VICTIMS["valkey"].parts)()
        add_adapter(manager, "late")
        test = manager.post(f"/api/webhooks/{hook.json()['id']}/test")
        assert test.status_code == 202, test.text
        answer = ask(up, FEW)
        assert answer.whole
        assert len(answer.seen) == FEW
    finally:
        up.process.send_signal(signal.SIGCONT)
    until(lambda: is_back(up, "valkey", before), 30, "Valkey is back")
    until(lambda: server.got, 40, "the webhook is called")
    assert json.loads(server.got[0].body)["type"] == "webhook.test"


@pytest.mark.parametrize("victim", VICTIMS)
def test_after_kills_at_every_step_it_serves_again(up: Up, victim: str, kills: list[Kill]) -> None:
    for step in VICTIMS[victim].steps:
        kills.append(kill(up, victim, step))
        assert kills[-1].answer.whole or victim not in ASIDE, "inference does not need it"


def test_then_each_request_is_billed_once_and_for_what_was_generated(up: Up, kills: list[Kill]) -> None:
    assert kills, "they come before"
    until(lambda: not rows(up, "SELECT 1 FROM tenants_inferencerequest WHERE state = 'running'"), 60, "nothing runs")
    ((requests,),) = rows(up, "SELECT count(*) FROM tenants_inferencerequest")
    entries = rows(up, "SELECT request_id, prompt_tokens, completion_tokens FROM tenants_ledgerentry")
    billed = {request_id: (prompt, completion) for request_id, prompt, completion in entries}
    assert len(entries) == len(billed) == requests
    for one in kills:
        as_promised(one, billed)
    assert rows(up, "SELECT subject FROM tenants_account WHERE held_tokens <> 0 OR held_cost <> 0") == []
    up.manage("reconcile", "--json")


def as_promised(one: Kill, billed: dict[UUID, tuple[int, int]]) -> None:
    what, seen, at = f"{one.victim} at {one.step}: {one}", one.answer.seen, one.end.at
    if one.request_id is None:
        assert one.step in BEFORE_ADMISSION, what
        assert not seen, what
        return
    prompt, completion = billed[one.request_id]
    assert at is not None
    if one.answer.whole:
        assert completion == one.answer.tokens == len(seen) == one.asked, what
        return
    loses = one.victim in {"gateway", "postgresql"}
    certain = [moment for moment in seen if moment < at - LOST_SECONDS] if loses else seen
    assert len(certain) <= completion <= min(len(seen) + IN_FLIGHT, one.asked), what
    if seen and seen[0] < at - LOST_SECONDS / 2:  # the first of its tokens are durable in 30 ms
        assert prompt > 0, what
        assert completion > 0, what
    if not seen and one.step in BEFORE_TOKENS:
        assert (prompt, completion) == (0, 0), what


def test_and_no_lease_was_kept_beyond_its_expiry(up: Up, kills: list[Kill]) -> None:
    left = rows(
        up,
        """SELECT r.id, r.lease_expires_at, r.settled_at FROM tenants_inferencerequest r
             JOIN tenants_ledgerentry e ON e.request_id = r.id WHERE e.outcome = 'abandoned'""",
    )
    assert left, "the gateway was killed"
    for request_id, expires, settled in left:
        due = expires + REAPED
        for one in kills:  # in the order of time; who reaps needs all of these
            assert one.end.when is not None
            if one.victim in (*ASIDE, "postgresql") and one.end.when <= due:
                due = max(due, one.back + REAPED)
        assert settled <= due, f"{request_id}: until {expires}, settled at {settled}"


def test_and_the_adapter_is_ready(manager: httpx.Client) -> None:
    def ready() -> bool:
        version = manager.get("/api/adapters/late/versions/1").json()
        assert version["state"] != "rejected", version
        return bool(version["state"] == "ready")

    until(ready, 150, "what came without the broker was checked")
