"""From one worker to the next: what moves on, and what it takes along."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import jwt
import pytest

from fleet.dialects.base import Job
from fleet.replica import Replica
from gateway.dispatch import Dispatch
from gateway.schemas import CompletionRequest
from inference.errors import EngineDead, Overloaded, WorkerUnavailable
from inference.protocol import Delta, Grant
from tenants import grants
from tenants.access import Access, ServedModel
from tenants.admission import Admitted
from tenants.grants import START_WITHIN_SECONDS
from tests.fleet.test_routing import Scripted

GRANT = Grant("r", "t", "n", "f", None, max_input=2, max_output=1, priority=0, weight=1, expires_at=0)
REQUEST = CompletionRequest(model="base", prompt=[1, 2], max_tokens=1)


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


def dispatch(workers: Sequence[Late]) -> Dispatch:
    replicas = [Replica(name=str(n), url="http://w", fingerprint="f", dialect=each) for n, each in enumerate(workers)]

    async def candidates(**asked: object) -> list[Replica]:
        return replicas

    async def newcomers(*asked: object) -> list[Replica]:
        return []

    services = SimpleNamespace(router=SimpleNamespace(candidates=candidates, newcomers=newcomers))
    return Dispatch(cast(Any, services), cast(Access, SimpleNamespace(tenant_id="t")), REQUEST, "r")


@pytest.mark.usefixtures("grant_keys")
@pytest.mark.parametrize("error", [WorkerUnavailable("gone"), EngineDead("dead"), Overloaded("full")])
async def test_the_next_worker_gets_a_grant_that_it_can_start_with(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one was silent for longer than a grant lives."""
    clock = [1_900_000_000.0]
    monkeypatch.setattr(grants, "time", SimpleNamespace(time=lambda: clock[0]))
    first, second = Late(clock, START_WITHIN_SECONDS * 2, error), Late(clock, 1.0, None)
    model = cast(ServedModel, SimpleNamespace(base="base", adapter_digest=None, fingerprint="f"))
    admitted = Admitted(1, 3, replace(GRANT, expires_at=int(clock[0]) + START_WITHIN_SECONDS), cast(Any, None))
    deltas = [delta async for delta in dispatch([first, second]).deltas(model, [1, 2], admitted)]
    assert [delta.text for delta in deltas] == ["a"]
    assert (first.left, second.left) == ([START_WITHIN_SECONDS], [START_WITHIN_SECONDS])
