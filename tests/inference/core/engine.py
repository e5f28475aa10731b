"""Scheduler, cache and residency over the fake runner, stepped by hand."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from inference.core.batch import Batch, Progress
from inference.core.flight import Flight
from inference.core.limits import Limits
from inference.core.prefix_cache import PrefixCache
from inference.core.residency import Residency
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.errors import AdapterInvalid
from inference.protocol import SamplingParams, TokenLogprob
from tests.inference.core.fake_runner import FakeRunner


class LateExecutor(Executor):
    """Work ends only when the test says so, in the order it likes."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Any, tuple[Any, ...]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, fn, args))
        return future

    def finish(self, index: int = 0) -> None:
        future, fn, args = self.jobs.pop(index)
        try:
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)


class Engine:
    """Everything but the device and the wall clock.

    :ivar trace: of every step its rows: request, position, tokens computed, blocks.
    """

    def __init__(
        self, runner: FakeRunner | None = None, *, broken: frozenset[str] = frozenset(), **limits: Any
    ) -> None:
        self.runner = runner or FakeRunner()
        self.executor = LateExecutor()
        self.now = 0.0

        def read(digest: str) -> object:
            if digest in broken:
                raise AdapterInvalid("broken", "file")
            return self.runner.read_adapter(Path("/nowhere") / digest)

        self.residency = Residency(
            self.runner.num_slots,
            fetch=lambda digest: self.executor.submit(read, digest),
            load=self.runner.load_adapter,
            clear=self.runner.clear_slot,
            wake=lambda: None,
        )
        bounds = Limits(**{"max_model_len": self.runner.max_model_len, "max_running": 8, "token_budget": 24, **limits})
        cache = PrefixCache(
            self.runner.num_blocks, self.runner.block_size, base="base", kv_dtype="fake", rules=bounds.shares
        )
        self.scheduler = Scheduler(
            bounds,
            cache,
            self.residency,
            eos_token_ids=self.runner.eos_token_ids,
            clock=lambda: self.now,
        )
        self.flight = Flight(self.runner, self.scheduler.foresee)
        self.done: dict[str, Progress] = {}
        self.outputs: dict[str, list[int]] = {}
        self.scores: dict[str, list[TokenLogprob]] = {}
        self.trace: list[list[tuple[str, int, int, int]]] = []
        self._writers: dict[int, str] = {}
        self._declared: set[tuple[str | None, tuple[int, ...]]] = set()

    def add(
        self, name: str, prompt: list[int], max_tokens: int = 8, *, params: dict[str, Any] | None = None, **values: Any
    ) -> Sequence:
        defaults = {"tenant": "a", "namespace": values.get("tenant", "a"), "adapter": None}
        sampling = SamplingParams(max_tokens=max_tokens, **params or {})
        sequence = Sequence(name, prompt, sampling, 1, **{**defaults, **values})
        displaced = self.scheduler.add(sequence)
        if displaced is not None:
            self._note(displaced)
        return sequence

    def step(self) -> int:
        """The number of rows computed; something above 0 as well while a step is on its way."""
        self.now += 0.01
        self.scheduler.yield_slots(self.scheduler.turn)
        progress = [
            p for settled in self.residency.poll(self.now, self.scheduler.turn) for p in self.scheduler.settle(settled)
        ]
        batch = self.scheduler.schedule()
        assert sum(len(row.tokens) for row in batch.rows) <= self.scheduler.limits.token_budget
        self._check_writers(batch)
        self.trace.append(
            [
                (sequence.request_id, row.start, len(row.tokens), len(row.block_table))
                for sequence, row in zip(batch.sequences, batch.rows, strict=True)
            ]
        )
        computing = len(batch.rows) or bool(self.flight)
        for ended, results in self.flight.advance(batch):
            progress += self.scheduler.postprocess(ended, results)
        for gained in progress:
            self._note(gained)
        return computing

    def _note(self, gained: Progress) -> None:
        name = gained.sequence.request_id
        if gained.tokens:
            self.outputs.setdefault(name, []).extend(gained.tokens)
        if gained.logprobs is not None:
            assert [entry.token for entry in gained.logprobs] == list(gained.tokens)
        if gained.prompt_logprobs is not None:
            assert name not in self.scores, "the prompt's scores came twice"
            self.scores[name] = list(gained.prompt_logprobs)
        if gained.finish or gained.error:
            assert name not in self.done
            self.done[name] = gained

    def declare(self, name: str, adapter: str | None, tokens: list[int]) -> None:
        """Make a prefix public; from now on anybody may read its full blocks."""
        size = self.runner.block_size
        self._declared |= {(adapter, tuple(tokens[:end])) for end in range(size, len(tokens) + 1, size)}
        self.scheduler.cache.declare(name, adapter, tokens)

    def _check_writers(self, batch: Batch) -> None:
        """Nobody reads a block that another namespace wrote, but for what was declared public."""
        size = self.runner.block_size
        for sequence, row in zip(batch.sequences, batch.rows, strict=True):
            for block in row.block_table[row.start // size : (row.start + len(row.tokens) - 1) // size + 1]:
                self._writers[block] = sequence.namespace
        for sequence, row in zip(batch.sequences, batch.rows, strict=True):
            for index, block in enumerate(row.block_table[: -(-row.start // size)]):
                read = (sequence.adapter, tuple(sequence.tokens[: (index + 1) * size]))
                assert self._writers[block] == sequence.namespace or read in self._declared, "a read across namespaces"

    def expected_scores(self, prompt: list[int], adapter: str | None) -> list[TokenLogprob]:
        ends = range(2, len(prompt) + 1)
        return [TokenLogprob(prompt[end - 1], self.runner.score(prompt[:end], adapter or "")) for end in ends]

    def drain(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.scheduler.live and not self.flight:
                break
            while self.executor.jobs:
                self.executor.finish()
            self.step()
        assert not self.scheduler.live, "requests are stuck"
        while self.executor.jobs:
            self.executor.finish()
        self.residency.poll(self.now)
        self.scheduler.check_idle()

    def expected(self, prompt: list[int], adapter: str | None, max_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(max_tokens):
            tokens.append(self.runner.next_token(tokens, adapter or ""))
            if tokens[-1] in self.runner.eos_token_ids:
                break
        return tokens[len(prompt) :]
