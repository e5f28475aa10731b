"""Workers that accept connections and say nothing: they cost seconds, no transaction stays open, nothing piles up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections
from kombu.connection import Connection

from fleet import residency, tasks, trial
from gateway.celery import app
from inference.front.core_link import NO_SLOTS
from tenants import activation, adapters, releases
from tenants.actors import of_task
from tenants.errors import NotFound
from tenants.models import Activation, Adapter, AdapterVersion, Tenant
from tests.gateway.house import House

ACTOR = of_task("test")


def waiting(house: House, tenant: Tenant, name: str = "pirate") -> AdapterVersion:
    adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=house.base)
    version: AdapterVersion = AdapterVersion.objects.create(adapter=adapter, number=1, state="checked", digest="a" * 64)
    Activation.objects.create(tenant=tenant, version=version)
    return version


class Half(BaseHTTPRequestHandler):
    """A worker that answers for its base model; whatever names an adapter hangs until the test is over."""

    fingerprint: ClassVar[str] = ""
    says: ClassVar[frozenset[str]] = frozenset()
    over: ClassVar[threading.Event]
    hung: ClassVar[threading.Event]

    def do_GET(self) -> None:
        if self.path == "/health" and "health" in self.says:
            self._send(json.dumps({"status": "ok", "fingerprint": self.fingerprint}).encode(), "application/json")
        elif self.path == "/metrics" and "health" in self.says:
            slots = 0 if "base only" in self.says else 4
            self._send(f"loraplex:adapter_slots {slots}\n".encode(), "text/plain")
        else:
            self._hang()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("model") == "a" * 64 and "base only" in self.says:
            error = {"message": NO_SLOTS, "type": "not_found_error", "param": None, "code": "model_not_found"}
            self._send(json.dumps({"error": error}).encode(), "application/json", status=404)
            return
        if self.path != "/v1/completions" or body["model"] == "a" * 64 or "base" not in self.says:
            self._hang()
            return
        prompt = [None] + [{str(one): {"logprob": -1.0, "rank": 1, "decoded_token": "x"}} for one in body["prompt"][1:]]
        choice = {
            "index": 0, "text": "x", "token_ids": [1], "finish_reason": "length", "prompt_logprobs": prompt,
            "logprobs": {"tokens": ["token_id:1"], "token_logprobs": [-1.0], "top_logprobs": [{"token_id:1": -1.0}],
                         "text_offset": [0]},
        }  # fmt: skip
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 1, "total_tokens": len(body["prompt"]) + 1}
        head = {"id": "cmpl", "object": "text_completion", "created": 1, "model": body["model"]}
        events = [{**head, "choices": [choice], "usage": None}, {**head, "choices": [], "usage": usage}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._send(text.encode(), "text/event-stream")

    def _hang(self) -> None:
        self.hung.set()
        self.over.wait(60)
        self.close_connection = True

    def _send(self, content: bytes, kind: str, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


Started = Callable[..., tuple[str, threading.Event]]


@pytest.fixture
def started(house: House) -> Iterator[Started]:
    """``started("health", "base")``: a worker's URL, and an event once it hangs; without words it never speaks."""
    over, servers = threading.Event(), []

    def start(*says: str) -> tuple[str, threading.Event]:
        hung = threading.Event()
        known = {"fingerprint": house.fingerprint, "says": frozenset(says), "over": over, "hung": hung}
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("One", (Half,), known))
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", hung

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def in_thread(work: Callable[[], Any]) -> Any:
    try:
        return work()
    finally:
        connections.close_all()


def test_one_that_says_nothing_is_passed_over_soon(
    house: House, tenant: Tenant, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trial.CHECK_SECONDS <= 5
    monkeypatch.setattr(trial, "CHECK_SECONDS", 0.3)
    monkeypatch.setattr(trial, "BASE_SECONDS", 0.4)
    house.worker(started()[0], "a-silent")
    house.worker(started("health")[0], "b-hangs")
    version, begun = waiting(house, tenant), time.monotonic()
    trial.run(version.pk)
    assert time.monotonic() - begun < 5
    found = Activation.objects.get(tenant=tenant, version=version)
    assert "b-hangs cannot try it now: it did not answer within 0.4 s" in found.report["message"], "both were asked"
    assert (found.state, found.tries) == ("waiting", 0), "nobody's fault"


def test_one_that_hangs_with_the_adapter_only_counts_as_a_try(
    house: House, tenant: Tenant, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "ADAPTER_SECONDS", 0.3)
    house.worker(started("health", "base")[0], "half")
    version = waiting(house, tenant)
    for tries in range(1, activation.MAX_TRIES):
        trial.run(version.pk)
        found = Activation.objects.get(tenant=tenant, version=version)
        assert (found.state, found.tries) == ("waiting", tries), found.report
    assert "half failed with the adapter: it did not answer within 0.3 s" in found.report["message"]
    trial.run(version.pk)
    version.refresh_from_db()
    assert version.state == "rejected"


def test_one_that_serves_no_adapters_says_nothing_about_one(house: House, tenant: Tenant, started: Started) -> None:
    house.worker(started("health", "base", "base only")[0], "bare")
    version = waiting(house, tenant)
    trial.run(version.pk)
    found = Activation.objects.get(tenant=tenant, version=version)
    version.refresh_from_db()
    assert (version.state, found.state, found.tries) == ("checked", "waiting", 0), found.report
    assert "bare cannot try it now: it serves no adapters." in found.report["message"]


def test_a_trial_is_queued_once_and_its_message_lapses(
    house: House, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [waiting(house, tenant, f"a{number}") for number in range(5)]
    with Connection("memory://") as broker:  # type: ignore[no-untyped-call]
        sent: list[Any] = []
        monkeypatch.setattr(
            app.amqp, "send_task_message", lambda producer, name, message, **kw: sent.append((name, message, kw))
        )
        monkeypatch.setattr(app, "producer_or_acquire", broker.Producer)
        with ThreadPoolExecutor(4) as threads:
            queued = sum(threads.map(lambda _: in_thread(tasks.try_waiting_adapters), range(8)))
    assert (queued, len(sent)) == (5, 5)
    assert {message.body[0][0] for _, message, _ in sent} == {version.pk for version in versions}
    assert all(message.headers["expires"] for _, message, _ in sent)
    assert tasks.try_waiting_adapters() == 0


def test_a_trial_that_runs_elsewhere_is_left_alone(
    house: House, tenant: Tenant, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "CHECK_SECONDS", 4.0)
    url, hung = started()
    house.worker(url, "silent")
    version = waiting(house, tenant)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(in_thread, lambda: trial.run(version.pk))
        assert hung.wait(10)
        begun = time.monotonic()
        trial.run(version.pk)
        assert time.monotonic() - begun < 2
        running.result()


def test_a_round_ends_in_time_and_holds_no_transaction(
    house: House, tenant: Tenant, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert residency.ROUND_SECONDS < 60
    monkeypatch.setattr(residency, "ROUND_SECONDS", 2.0)
    url, hung = started("health", "base")
    house.worker(url, "half")
    version = waiting(house, tenant)
    AdapterVersion.objects.unscoped().filter(pk=version.pk).update(state="ready")
    Adapter.objects.filter(tenant=tenant).update(current=version)
    releases.set_pinned(ACTOR, tenant, "pirate", True)
    with ThreadPoolExecutor(1) as thread:
        begun = time.monotonic()
        running = thread.submit(in_thread, residency.reconcile)
        assert hung.wait(10)
        assert residency.reconcile() is None, "one round at a time"
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND xact_start IS NOT NULL AND backend_type = 'client backend'"
            )
            assert cursor.fetchone()[0] == 0
        (done,) = running.result()
    assert time.monotonic() - begun < 8
    assert done["loaded"] == []
    assert "not all was done within 2 s" in done["problems"][0]
    assert residency.reconcile() is not None, "the lock was given back"


@pytest.mark.parametrize("passed", [True, False])
def test_a_trial_that_ends_while_its_adapter_is_deleted(
    house: House, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    """The deletion has the adapter's row and not yet its versions': whoever comes waits for it, holding nothing."""
    version = waiting(house, tenant)
    holding, refuse = threading.Event(), adapters._refuse

    def refuse_slowly(*arguments: Any) -> None:
        if connection.in_atomic_block:  # it is asked before as well, without the row
            holding.set()
            time.sleep(0.5)
        refuse(*arguments)

    monkeypatch.setattr(adapters, "_refuse", refuse_slowly)
    with ThreadPoolExecutor(1) as thread:
        deleting = thread.submit(in_thread, lambda: adapters.delete(ACTOR, tenant, "pirate"))
        assert holding.wait(10)
        activation.decide(version.pk, {"passed": passed, "message": "x"})
        deleting.result()
    with pytest.raises(NotFound):
        adapters.find(tenant, "pirate")
    kept = AdapterVersion.with_deleted.unscoped().get(pk=version.pk)
    assert (kept.state, kept.deleted_at is None) == ("checked", False), "nothing was decided about a deleted one"


def test_what_waits_for_others_has_processes_of_its_own() -> None:
    from gateway import installation

    served = {installation.queue(name).command[installation.queue(name).command.index("--queues") + 1]
              for name in installation.QUEUES}  # fmt: skip
    routes = django_settings.CELERY_TASK_ROUTES
    assert {route["queue"] for route in routes.values()} == served == set(installation.QUEUES)
    assert "--queues" not in installation.celery().command
    assert {"tenants.tasks.check_adapter", "fleet.tasks.try_adapter", "fleet.tasks.place_adapters"} <= routes.keys()
    assert routes["tenants.tasks.reconcile"] == routes["tenants.tasks.roll_up"] == {"queue": "books"}
    assert not {"tenants.tasks.reap", "fleet.tasks.try_waiting_adapters"} & routes.keys()
    app.loader.import_default_modules()
    assert routes.keys() <= app.tasks.keys()
    assert all(app.tasks[name].time_limit for name in ("fleet.tasks.try_adapter", "fleet.tasks.place_adapters"))
