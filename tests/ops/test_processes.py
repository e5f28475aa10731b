"""The supervisor: no service's trouble ends it or keeps another service down."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kombu import Connection

from gateway import processes
from gateway.embedded.process import spawn, stop
from gateway.embedded.valkey import Valkey
from gateway.installation import celery_answers
from gateway.processes import Child, ServerFailed, StopRequested, Supervisor

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


def child(name: str, folder: Path, ready: Callable[[Child], bool] = lambda _: True, timeout: float = 30) -> Child:
    return Child(name, SLEEP, folder / f"{name}.log", ready, dict(os.environ), timeout=timeout)


def watch_until(supervisor: Supervisor, said: list[str], done: Callable[[], bool], seconds: float) -> None:
    """Watch in this thread, which the children are bound to; another ends it as Ctrl-C would."""

    def end() -> None:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=end)
    thread.start()
    try:
        with pytest.raises(StopRequested):
            supervisor.watch()
    finally:
        thread.join()
    assert done(), said


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_POLL_SECONDS", 0.05)


def kill(service: Child) -> None:
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGKILL)


def test_a_probe_that_raises_means_not_ready(tmp_path: Path) -> None:
    asked: list[int] = []

    def ready(_: Child) -> bool:
        asked.append(1)
        if len(asked) < 3:
            raise RuntimeError("stale connection")
        return True

    service = child("one", tmp_path, ready)
    service.start()
    service.stop()
    assert len(asked) == 3


def test_a_probe_that_raises_during_a_restart_does_not_end_the_watch(tmp_path: Path) -> None:
    said: list[str] = []
    state = {"broken": 0}

    def ready(_: Child) -> bool:
        if state["broken"]:
            state["broken"] -= 1
            raise RuntimeError("stale connection")
        return True

    with Supervisor(said.append) as supervisor:
        service = child("one", tmp_path, ready)
        supervisor.start("one", service)
        state["broken"] = 3
        kill(service)
        watch_until(supervisor, said, lambda: "one is ready again" in said, 10)


def test_a_service_that_cannot_be_spawned_does_not_end_the_watch(tmp_path: Path) -> None:
    said: list[str] = []
    with Supervisor(said.append) as supervisor:
        lost, other = child("lost", tmp_path), child("other", tmp_path)
        supervisor.start("lost", lost)
        supervisor.start("other", other)
        (tmp_path / "file").write_text("")
        lost.log = tmp_path / "file" / "lost.log"  # its folder cannot be made: spawn raises OSError
        kill(lost)
        kill(other)
        watch_until(supervisor, said, lambda: "other is ready again" in said, 10)


def test_one_that_takes_long_to_get_ready_does_not_keep_another_down(tmp_path: Path) -> None:
    said: list[str] = []
    slow_from = {"at": float("-inf")}
    with Supervisor(said.append) as supervisor:
        slow = child("slow", tmp_path, lambda _: time.monotonic() > slow_from["at"] + 60, timeout=120)
        quick = child("quick", tmp_path)
        supervisor.start("slow", slow)
        supervisor.start("quick", quick)
        slow_from["at"] = time.monotonic()
        kill(slow)
        kill(quick)
        watch_until(supervisor, said, lambda: "quick is ready again" in said, 10)
        assert "slow is ready again" not in said


def test_one_that_dies_again_before_it_is_ready_is_started_once_more(tmp_path: Path) -> None:
    said: list[str] = []
    starts = tmp_path / "starts"
    code = (
        f"import pathlib, sys, time; p = pathlib.Path({str(starts)!r}); n = len(p.read_text()) if p.exists() else 0;"
        "p.write_text('x' * (n + 1)); sys.exit(3) if n == 1 else None; print('here', flush=True); time.sleep(300)"
    )
    service = Child("one", [sys.executable, "-c", code], tmp_path / "log", lambda c: "here" in c.output(), {})
    with Supervisor(said.append) as supervisor:
        supervisor.start("one", service)
        kill(service)
        watch_until(supervisor, said, lambda: "one is ready again" in said, 20)
    assert starts.read_text() == "xxx"


def test_one_of_several_that_does_not_start_ends_all(tmp_path: Path) -> None:
    good = child("good", tmp_path)
    bad = Child("bad", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", lambda _: False, {})
    with pytest.raises(ServerFailed, match="bad stopped with exit status 3"), Supervisor(print) as supervisor:
        supervisor.start_together([good, bad])
    assert good.process is None


SLOW_TO_END = """
import pathlib, signal, sys, time
story = pathlib.Path(sys.argv[1])
def end(*_):
    note("asked"), time.sleep(float(sys.argv[3])), note("ended"), sys.exit(0)
def note(what):
    with story.open("a") as file:
        file.write(f"{sys.argv[2]} {what}\\n")
signal.signal(signal.SIGTERM, end)
print("here", flush=True)
time.sleep(300)
"""


def test_those_started_together_stop_together_and_before_what_they_need(tmp_path: Path) -> None:
    story, said = tmp_path / "story", list[str]()

    def slow(name: str, seconds: float, *, needed: bool = False) -> Child:
        command = [sys.executable, "-c", SLOW_TO_END, str(story), name, str(seconds)]
        log = tmp_path / f"{name}.log"
        return Child(name, command, log, lambda c: "here" in c.output(), dict(os.environ), needed=needed)

    with Supervisor(said.append) as supervisor:
        supervisor.start_together([slow("server", 0, needed=True), slow("one", 3), slow("other", 3)])
        assert sorted(line.split()[0] for line in said if "is ready" in line) == ["one", "other", "server"]
    told = story.read_text().splitlines()
    assert sorted(told[:2]) == ["one asked", "other asked"]
    assert sorted(told[2:4]) == ["one ended", "other ended"]
    assert told[4:] == ["server asked", "server ended"]
    assert {line.split()[0] for line in said if "has stopped" in line} == {"one", "other"}


def test_celery_is_asked_again_after_the_broker_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of an earlier question is stale then; with no broker at all the answer is "none", and soon."""
    from gateway.celery import app

    valkey = Valkey(tmp_path / "var", tmp_path / "valkey.log")
    valkey.start()
    broker = valkey.url.replace("unix://", "redis+socket://", 1)
    monkeypatch.setattr(app, "connection_for_write", lambda: Connection(broker))
    command = [*(sys.executable, "-m", "celery", "-b", broker, "-A", "gateway", "worker", "--pool", "solo")]
    worker = spawn(command, tmp_path / "celery.log")
    try:
        answers_within(60)
        assert valkey.process is not None
        valkey.process.kill()
        valkey.process.wait()
        begun = time.monotonic()
        assert celery_answers() == []
        assert time.monotonic() - begun < 5
        valkey.start()
        answers_within(60)
    finally:
        stop(worker)
        valkey.stop()


def answers_within(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not celery_answers():
        assert time.monotonic() < deadline, "no Celery worker answers"
        time.sleep(0.2)


def test_what_did_not_start_says_what_it_wrote_this_time(tmp_path: Path) -> None:
    for word in ("first", "second"):
        service = Child(
            "one",
            [sys.executable, "-c", f"raise SystemExit('{word} cause')"],
            tmp_path / "one.log",
            lambda _: False,
            {},
        )
        with pytest.raises(ServerFailed) as caught:
            service.start()
    assert "second cause" in str(caught.value)
    assert "first cause" not in str(caught.value)
