"""Breaker, prefix locality, metrics and the order of candidates."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fleet.breaker import Breaker
from fleet.dialects.base import Capabilities, Dialect, Job, Probe
from fleet.dialects.metrics import read_probe
from fleet.locality import BLOCK_TOKENS, PrefixIndex, prefix_chain
from fleet.replica import LACKING_SECONDS, Replica
from fleet.router import FULL_QUEUE, score
from inference.errors import InvalidRequest, Overloaded, WorkerUnavailable
from inference.protocol import Delta, Usage

JOB = Job("base", None, [1, 2], {}, "grant")


class Scripted(Dialect):
    """Answers as it was told."""

    capabilities = Capabilities(token_ids=True, dynamic_load=True, cache_salt=True, residency=True)

    def __init__(self) -> None:
        self.fingerprint = "f"
        self.state = Probe()
        self.error: Exception | None = None

    async def check(self) -> str | None:
        return self.fingerprint

    async def probe(self) -> Probe:
        if self.error:
            raise self.error
        return self.state

    async def generate(self, job: Job) -> AsyncGenerator[Delta, None]:
        if self.error:
            raise self.error
        yield Delta("a", (1,), "stop", Usage(2, 1))


class Narrow(Scripted):
    """A kind of server that knows neither choices nor log-probabilities."""

    capabilities = replace(Scripted.capabilities, refuses=frozenset({"n", "logprobs"}))


@pytest.fixture
async def replica() -> Replica:
    made = Replica(name="w", url="http://w", fingerprint="f", dialect=Scripted())
    await made.refresh()
    return made


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_breaker_opens_pauses_tries_and_closes() -> None:
    clock = Clock()
    breaker = Breaker(threshold=3, pause=1.0, longest=4.0, clock=clock)
    for _ in range(2):
        breaker.failed()
    assert breaker.allows
    breaker.failed()
    assert not breaker.allows
    pause = 1.0
    for expected in (2.0, 4.0, 4.0):
        clock.now += pause
        assert breaker.allows
        breaker.attempt()
        assert not breaker.allows  # one trial at a time
        breaker.failed()
        pause = expected
        clock.now += pause - 0.01
        assert not breaker.allows
        clock.now += 0.01 - pause
    clock.now += pause
    breaker.attempt()
    breaker.succeeded()
    assert breaker.allows
    breaker.failed()
    assert breaker.allows


def test_a_first_token_closes_a_breaker_until_the_next_failure() -> None:
    """Answers take long; whoever waits for the end of the first one would come back to a request a second."""
    clock = Clock()
    breaker = Breaker(threshold=3, pause=1.0, clock=clock)
    for _ in range(3):
        breaker.failed()
    clock.now = 1.0
    breaker.attempt()
    breaker.answers()
    assert breaker.allows
    breaker.attempt()
    assert breaker.allows, "not one at a time any more"
    breaker.failed()
    clock.now = 2.5
    assert not breaker.allows, "it broke off in the middle of its answer: twice as long"
    breaker.answers()
    assert not breaker.allows, "what was sent before says nothing of how it is now"
    clock.now = 3.0
    assert breaker.allows
    breaker.attempt()
    breaker.answers()
    breaker.succeeded()
    breaker.failed()
    assert breaker.allows


def test_a_trial_nobody_reported_does_not_block_for_ever() -> None:
    clock = Clock()
    breaker = Breaker(threshold=1, pause=1.0, clock=clock)
    breaker.failed()
    clock.now = 1.0
    breaker.attempt()
    clock.now = 2.0
    assert breaker.allows


def chain(prompt: list[int], *, fingerprint: str = "f", digest: str | None = None, namespace: str = "a") -> list[bytes]:
    return prefix_chain(fingerprint=fingerprint, digest=digest, namespace=namespace, prompt=prompt)


def test_chains_share_exactly_their_common_blocks() -> None:
    prompt = list(range(5 * BLOCK_TOKENS))
    other = [*prompt[: 2 * BLOCK_TOKENS], 999, *prompt[2 * BLOCK_TOKENS + 1 :]]
    index = PrefixIndex()
    index.add(chain(prompt), "a")
    assert index.matched(chain(prompt), "a") == 5
    assert index.matched(chain(prompt[:-1]), "a") == 4
    assert index.matched(chain(other), "a") == 2
    assert chain(prompt[: BLOCK_TOKENS - 1]) == []


@pytest.mark.parametrize("root", [{"fingerprint": "g"}, {"digest": "d"}, {"namespace": "b"}])
def test_another_root_shares_nothing(root: dict[str, str]) -> None:
    prompt = list(range(64))
    assert not set(chain(prompt)) & set(chain(prompt, **root))


def test_parts_of_the_root_cannot_be_shifted() -> None:
    assert chain([1] * 16, digest="ab", namespace="c") != chain([1] * 16, digest="a", namespace="bc")


def test_the_index_forgets_the_oldest() -> None:
    index = PrefixIndex(capacity=4)
    first, second = chain(list(range(64))), chain(list(range(100, 164)))
    index.add(first, "a")
    index.add(second, "a")
    assert index.matched(first, "a") == 0
    assert index.matched(second, "a") == 4


def test_who_has_the_most_in_the_index_loses_it_first() -> None:
    index = PrefixIndex(capacity=16)
    modest = chain(list(range(64)), namespace="modest")
    index.add(modest, "modest")
    prompts = [chain(list(range(start, start + 64)), namespace="greedy") for start in range(0, 6400, 100)]
    for prompt in prompts:
        index.add(prompt, "greedy")
    assert index.matched(modest, "modest") == 4
    assert [index.matched(prompt, "greedy") for prompt in prompts[-4:]] == [0, 4, 4, 4]
    assert sum(index.matched(prompt, "greedy") for prompt in prompts) == 12
    index.clear()
    index.add(prompts[0], "greedy")
    assert index.matched(prompts[0], "greedy") == 4


def test_metrics_newest_series_wins_and_missing_ones_are_zero() -> None:
    text = """
# HELP vllm:num_requests_running x
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 2
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.8e9
loraplex:adapter_resident{digest="r"} 1
loraplex:adapter_resident{digest="gone"} 0
loraplex:adapter_slots{model_name="m"} 8.0
nonsense line
"""
    assert read_probe(text) == Probe(3, 2, 0.25, frozenset({"a", "b", "r"}), slots=8)
    assert read_probe("") == Probe()


async def test_score_prefers_prefix_then_short_queues_and_residents(replica: Replica) -> None:
    plain = score(replica, matched=0.0, digest=None)
    assert score(replica, matched=1.0, digest=None) > plain
    assert score(replica, matched=0.0, digest="d") < plain
    replica.probe = Probe(resident=frozenset({"d"}))
    assert score(replica, matched=0.0, digest="d") == plain
    replica.probe = Probe(running=FULL_QUEUE)
    full = score(replica, matched=0.0, digest=None)
    assert full < plain
    replica.probe = Probe(running=FULL_QUEUE * 100)
    assert score(replica, matched=0.0, digest=None) == full
    replica.probe = Probe(kv_usage=1.0)
    assert score(replica, matched=0.0, digest=None) < plain


async def test_a_worker_with_another_fingerprint_is_not_available() -> None:
    dialect = Scripted()
    dialect.fingerprint = "other"
    replica = Replica(name="w", url="http://w", fingerprint="f", dialect=dialect)
    await replica.refresh()
    assert not replica.available
    assert "registered as" in (replica.problem or "")


async def test_a_worker_that_goes_and_comes_back(replica: Replica) -> None:
    dialect = replica.dialect
    assert isinstance(dialect, Scripted)
    replica.prefixes.add(chain([1] * 16), "a")
    replica.note_lacking("d")
    dialect.error = WorkerUnavailable("gone")
    await replica.refresh()
    assert not replica.available
    assert replica.prefixes.matched(chain([1] * 16), "a") == 0
    assert not replica.lacks("d")
    dialect.error = None
    await replica.refresh()
    assert replica.available


@pytest.mark.parametrize(
    ("error", "breaks"), [(WorkerUnavailable("x"), True), (Overloaded("x"), False), (InvalidRequest("x"), False)]
)
async def test_only_broken_workers_open_the_breaker(replica: Replica, error: Exception, breaks: bool) -> None:
    assert isinstance(replica.dialect, Scripted)
    replica.dialect.error = error
    for _ in range(3):
        with pytest.raises(type(error)):
            async for _ in replica.generate(JOB):
                pass
    assert replica.breaker.allows is not breaks
    assert replica.in_flight == 0


async def test_a_half_open_breaker_hears_of_the_first_token(replica: Replica) -> None:
    clock = Clock()
    replica.breaker = Breaker(threshold=1, pause=1.0, clock=clock)
    replica.breaker.failed()
    clock.now = 1.0
    generated = replica.generate(JOB)
    await anext(generated)
    assert replica.breaker.allows
    await generated.aclose()


async def test_what_a_worker_lacked_is_forgotten_after_a_while(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("fleet.replica.time", SimpleNamespace(monotonic=lambda: now[0]))
    replica.note_lacking("d")
    assert (replica.lacks("d"), replica.lacks("e"), replica.lacks(None)) == (True, False, False)
    now[0] += LACKING_SECONDS
    assert not replica.lacks("d")
    replica.note_lacking("e")
    assert list(replica._lacking) == ["e"], "what is over takes no memory"


def test_a_grant_is_not_in_a_jobs_repr() -> None:
    assert "grant" not in repr(Job("b", None, [1], {}, "grant"))


async def test_what_a_server_cannot_honour_is_refused_by_name_and_not_sent() -> None:
    narrow = Replica(name="w", url="http://w", fingerprint="f", dialect=Narrow())
    await narrow.refresh()
    assert [delta async for delta in narrow.generate(replace(JOB, sampling={"temperature": 0.5}))]
    with pytest.raises(InvalidRequest) as caught:
        await anext(narrow.generate(replace(JOB, sampling={"temperature": 0.5, "n": 3})))
    assert caught.value.param == "n"
    assert narrow.in_flight == 0
    assert narrow.available
