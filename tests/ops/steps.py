"""One streamed request, and a kill -9 at each of its steps, known by what its client has seen or the database shows."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
import psycopg

from gateway.embedded.sockets import postgres_dsn
from tests.ops.installation import Up, until

TOKENS, MIDDLE = 160, 96
"""Of a request that is met in the middle: seconds from its first token on."""
FEW = 24
"""Of the others."""
PROMPT = "Once upon a time there was a pirate who had lost his parrot. " * 12
"""Reading it takes the worker long enough to be met at it."""

SENT_SECONDS = 0.005
"""After the beginning of a request: it is on its way, or its prompt is made into tokens."""

PREFILL_SECONDS = 0.05
"""After its admission a worker has it, and reads the prompt."""

LINE = "SELECT tenants_stand_in_line(id) FROM tenants_tenant WHERE slug = 'acme'"
ACCOUNT = """SELECT 1 FROM tenants_account a JOIN tenants_tenant t ON t.id = a.tenant_id
              WHERE t.slug = 'acme' AND a.subject = 'tenant' FOR UPDATE OF a"""


@dataclass
class Answer:
    """What one client saw.

    :ivar seen: when each token came, by the monotonic clock. :ivar tokens: those of the usage at the end.
    :ivar whole: it ended as it should.
    """

    seen: list[float] = field(default_factory=list)
    tokens: int = 0
    whole: bool = False


@dataclass
class End:
    """kill -9 of processes that are there already. :param parts: of their command lines. :ivar at: when it came, by the
    monotonic clock; :ivar when: the same as a date."""

    up: Up
    parts: Sequence[str]
    at: float | None = None
    when: datetime | None = None

    def __post_init__(self) -> None:
        self._pids = [self.up.pid_of(part) for part in self.parts]

    def __call__(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        self.at, self.when = time.monotonic(), datetime.now(UTC)


Seen = Callable[[int], None]
"""Called with the number of tokens that the client has by then."""

Step = Callable[[End], AbstractContextManager[Seen]]
"""Around a request: kills at some moment of it."""


def connect(up: Up, *, autocommit: bool = True) -> psycopg.Connection[tuple]:
    return psycopg.connect(postgres_dsn(up.data_dir), connect_timeout=5, autocommit=autocommit)


def rows(up: Up, query: str) -> list[tuple]:
    with connect(up) as connection:
        return connection.execute(query).fetchall()


ADMITTED = "SELECT id FROM tenants_inferencerequest WHERE max_tokens > 1"


def admitted(up: Up) -> set[UUID]:
    """Those that :func:`ask` made, without the ones that only ask whether it serves."""
    return {request_id for (request_id,) in rows(up, ADMITTED)}


def ask(up: Up, tokens: int, step: Step | None = None, end: End | None = None) -> Answer:
    """Stream one answer, with a kill at its step."""
    body = {"model": up.demo["base_model"], "prompt": f"{uuid4()} {PROMPT}", "max_tokens": tokens, "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}, "logprobs": 0}
    headers = {"Authorization": f"Bearer {up.demo['tenants'][0]['api_key']}"}
    answer, url = Answer(), f"http://127.0.0.1:{up.port}/v1/completions"
    around = nullcontext(_ignore) if step is None or end is None else step(end)
    asked = {"json": body, "headers": headers, "timeout": 60}
    with around as seen, suppress(httpx.HTTPError), httpx.stream("POST", url, **asked) as response:
        _read(response, answer, seen)
    return answer


def _read(response: httpx.Response, answer: Answer, seen: Seen) -> None:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            answer.whole = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return
            if event.get("usage"):
                answer.tokens = event["usage"]["completion_tokens"]
            for choice in event["choices"]:
                if choice["logprobs"] is not None:
                    answer.seen += [time.monotonic()] * len(choice["logprobs"]["tokens"])
                    seen(len(answer.seen))


def _ignore(tokens: int) -> None:
    pass


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(work)
        yield
        done.result()


class _Held:
    """What a step needs in the database, held by somebody else until it is waited for and the kill has come."""

    def __init__(self, end: End) -> None:
        self._end = end
        self._holder = connect(end.up, autocommit=False)

    def take(self, statement: str) -> None:
        self._holder.execute(statement)

    def kill_who_waits(self) -> None:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        pid = self._holder.info.backend_pid
        try:
            with connect(self._end.up) as watching:
                until(lambda: watching.execute(waiting, [pid]).fetchone(), 20, "somebody waits", pause=0.01)
            self._end()
        finally:
            with suppress(psycopg.OperationalError):  # the database is what was killed
                self._holder.rollback()
            self._holder.close()


@contextmanager
def sent(end: End) -> Iterator[Seen]:
    def work() -> None:
        time.sleep(SENT_SECONDS)
        end()

    with _beside(work):
        yield _ignore


@contextmanager
def admission(end: End) -> Iterator[Seen]:
    """It stands in its tenant's line."""
    held = _Held(end)
    held.take(LINE)
    with _beside(held.kill_who_waits):
        yield _ignore


@contextmanager
def prefill(end: End) -> Iterator[Seen]:
    """It is admitted, and no token is there."""
    known = set(rows(end.up, ADMITTED))

    def work() -> None:
        with connect(end.up) as watching:
            until(lambda: set(watching.execute(ADMITTED)) - known, 20, "it is admitted", pause=0.002)
        time.sleep(PREFILL_SECONDS)
        end()

    with _beside(work):
        yield _ignore


def _at(tokens: int) -> Step:
    @contextmanager
    def step(end: End) -> Iterator[Seen]:
        yield lambda seen: end() if end.at is None and seen >= tokens else None

    return step


@contextmanager
def settlement(end: End) -> Iterator[Seen]:
    """Its settlement waits for the tenant's account."""
    held, waiting = _Held(end), list[Future[None]]()

    def seen(tokens: int) -> None:
        if not waiting:
            held.take(ACCOUNT)
            waiting.append(threads.submit(held.kill_who_waits))

    with ThreadPoolExecutor(1) as threads:
        yield seen
        for done in waiting:
            done.result()


@contextmanager
def over(end: End) -> Iterator[Seen]:
    yield _ignore
    end()


STEPS: dict[str, Step] = {
    "sent": sent,
    "admission": admission,
    "prefill": prefill,
    "first": _at(1),
    "middle": _at(MIDDLE),
    "settlement": settlement,
    "end": over,
}
BEFORE_ADMISSION = {"sent", "admission"}
BEFORE_TOKENS = BEFORE_ADMISSION | {"prefill"}
