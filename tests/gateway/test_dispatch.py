"""From one worker to the next: what moves on, and what it takes along."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest

from fleet.dialects.base import Job
from fleet.locality import prefix_chain
from fleet.replica import Replica
from gateway.dispatch import Dispatch
from gateway.schemas import CompletionRequest
from inference.errors import (
    AdapterInvalid,
    AdapterNotFound,
    EngineDead,
    InferenceError,
    InvalidRequest,
    Overloaded,
    WorkerUnavailable,
)
from inference.front.core_link import NO_SLOTS
from inference.protocol import Delta, Grant
from tenants import grants
from tenants.access import Access, ServedModel
from tenants.admission import Admitted
from tenants.grants import START_WITHIN_SECONDS
from tests.fleet.test_routing import Scripted

GRANT = Grant("r", "t", "n", "f", None, max_input=2, max_output=1, priority=0, weight=1, expires_at=0)
REQUEST = CompletionRequest(model="base", prompt=[1, 2], max_tokens=1)
PROMPT = list(range(32))
LACKING = [AdapterNotFound("not there"), AdapterInvalid("half a copy"), AdapterNotFound(NO_SLOTS)]


class Late(Scripted):
    """Says what it has to say after a while, by the clock of this test."""

    def __init__(self, clock: list[float], seconds: float, error: Exception | None) -> None:
        super().__init__()
        self.clock, self.seconds, self.fails = clock, seconds, error
        self.left: list[float] = []  # of each grant, as it came

    async def generate(self, job: Job) -> AsyncGenerator[Delta, None]:
        expires = jwt.decode(job.grant, options={"verify_signature": False})["exp"]
        self.left.append(expires - self.clock[0])
        self.clock[0] += self.seconds
        if self.fails is not None:
            raise self.fails
        yield Delta("a", (1,), "stop")


class Stub:
    """A router that knows these workers. :ivar begun: what the dispatch said each time more were asked for."""

    def __init__(self, workers: Sequence[Late]) -> None:
        self.replicas = [
            Replica(name=str(n), url="http://w", fingerprint="f", dialect=each) for n, each in enumerate(workers)
        ]
        self.more: list[Replica] = []
        self.begun: list[bool] = []
        access = cast(Access, SimpleNamespace(tenant_id="t"))
        self.dispatch = Dispatch(cast(Any, SimpleNamespace(router=self)), access, REQUEST, "r")

    async def candidates(self, **asked: object) -> list[Replica]:
        return self.replicas

    async def newcomers(self, *asked: object) -> list[Replica]:
        self.begun.append(self.dispatch.begun)
        return self.more

    async def text(self, digest: str | None = None, *, expires: float = 1_900_000_000.0) -> str:
        model = cast(ServedModel, SimpleNamespace(base="base", adapter_digest=digest, fingerprint="f"))
        admitted = Admitted(1, 3, replace(GRANT, expires_at=int(expires)), cast(Any, None))
        return "".join([delta.text async for delta in self.dispatch.deltas(model, PROMPT, admitted)])


def failing(*errors: InferenceError | None) -> Stub:
    return Stub([Late([0.0], 0.0, error) for error in errors])


def asked(stub: Stub) -> list[int]:
    """How many requests each worker got."""
    return [len(cast(Late, replica.dialect).left) for replica in stub.replicas]


@pytest.mark.usefixtures("grant_keys")
@pytest.mark.parametrize("error", [WorkerUnavailable("gone"), EngineDead("dead"), Overloaded("full")])
async def test_the_next_worker_gets_a_grant_that_it_can_start_with(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one was silent for longer than a grant lives."""
    clock = [1_900_000_000.0]
    monkeypatch.setattr(grants, "time", SimpleNamespace(time=lambda: clock[0]))
    first, second = Late(clock, START_WITHIN_SECONDS * 2, error), Late(clock, 1.0, None)
    assert await Stub([first, second]).text(expires=clock[0] + START_WITHIN_SECONDS) == "a"
    assert (first.left, second.left) == ([START_WITHIN_SECONDS], [START_WITHIN_SECONDS])


@pytest.mark.usefixtures("grant_keys")
@pytest.mark.parametrize("error", LACKING)
async def test_a_worker_that_cannot_load_the_adapter_costs_no_request(error: InferenceError) -> None:
    stub = failing(error, error, None)
    assert await stub.text("d") == "a"
    assert asked(stub) == [1, 1, 1], "they say so at once, and do not count as tried"
    assert [replica.lacks("d") for replica in stub.replicas] == [True, True, False]
    assert all(replica.breaker.allows for replica in stub.replicas)


@pytest.mark.usefixtures("grant_keys")
async def test_an_adapter_whose_numbers_overflow_is_no_workers_fault() -> None:
    stub = failing(InvalidRequest("What the model computes with the adapter is not finite", "model"), None)
    with pytest.raises(InvalidRequest, match="not finite"):
        await stub.text("d")
    assert asked(stub) == [1, 0], "its prompt was computed, and is not computed again for nothing"
    assert not stub.replicas[0].lacks("d")


@pytest.mark.usefixtures("grant_keys")
@pytest.mark.parametrize("error", LACKING)
async def test_where_none_can_load_it_its_client_hears_that(error: InferenceError) -> None:
    stub = failing(*[error] * 4)
    with pytest.raises(type(error)):
        await stub.text("d")
    assert asked(stub) == [1] * 4
    with pytest.raises(type(error)):
        await stub.text("d")
    assert asked(stub) == [2, 2, 1, 1], "it is known: not all are asked each time"


@pytest.mark.usefixtures("grant_keys")
@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("error", [WorkerUnavailable("gone"), Overloaded("full")])
async def test_one_that_has_the_adapter_says_why_it_failed(lacking: InferenceError, error: InferenceError) -> None:
    for errors in ((error, lacking), (lacking, error)):
        with pytest.raises(type(error)):
            await failing(*errors).text("d")


@pytest.mark.usefixtures("grant_keys")
@pytest.mark.parametrize("error", [AdapterNotFound("no such model"), InvalidRequest("model", "model")])
async def test_what_is_wrong_with_a_request_for_the_base_model_is_tried_nowhere_else(error: InferenceError) -> None:
    stub = failing(error, None)
    with pytest.raises(type(error)):
        await stub.text()
    assert asked(stub) == [1, 0]


@pytest.mark.usefixtures("grant_keys")
async def test_nothing_is_begun_while_another_worker_is_looked_for() -> None:
    """Whoever leaves then pays for no prompt."""
    stub = failing(WorkerUnavailable("gone"))
    stub.more = failing(None).replicas
    assert await stub.text() == "a"
    assert (stub.begun, stub.dispatch.begun) == ([False], True)
    stub = failing(WorkerUnavailable("gone"), EngineDead("dead"))
    stub.more = failing(WorkerUnavailable("gone too")).replicas
    with pytest.raises(WorkerUnavailable, match="gone too"):
        await stub.text()
    assert stub.begun == [False], "looked for once"


@pytest.mark.usefixtures("grant_keys")
async def test_the_prompt_is_noted_where_it_was_computed() -> None:
    stub = failing(Overloaded("full"), None)
    await stub.text("d")
    chain = prefix_chain(fingerprint="f", digest="d", namespace="t", prompt=PROMPT)
    assert [replica.prefixes.matched(chain, "t") for replica in stub.replicas] == [0, 2]
