"""Open-loop traffic through the scheduler in simulated time: a step costs a base and so much for every token."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.errors import Overloaded
from tests.inference.core.engine import Engine
from tests.inference.core.fake_runner import FakeRunner

STEP_SECONDS = 0.030
TOKEN_SECONDS = 0.003
"""About what the 135M model costs on two cores in fp32."""


class TimedRunner(FakeRunner):
    """:ivar busy: seconds that the steps so far took."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.busy = 0.0

    def run(self, rows: Sequence[Any]) -> list[Any]:
        self.busy += STEP_SECONDS + TOKEN_SECONDS * sum(len(row.tokens) for row in rows)
        return super().run(rows)


@dataclass(order=True)
class Arrival:
    at: float
    tenant: str = field(compare=False)
    prompt: list[int] = field(compare=False)
    max_tokens: int = field(compare=False)
    adapter: str | None = field(compare=False, default=None)
    values: dict[str, Any] = field(compare=False, default_factory=dict)


@dataclass
class Times:
    """Of one request: when it came, when its tokens did."""

    arrival: Arrival
    tokens: list[float] = field(default_factory=list)
    refused: bool = False

    @property
    def first(self) -> float:
        return self.tokens[0] - self.arrival.at

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.tokens, self.tokens[1:], strict=False)]


class Clocked(Engine):
    """An engine whose clock is the runner's busy time, and the arrivals' where it idles.

    :param read_seconds: what reading an adapter from disk takes; ``load_seconds``: putting it into a slot, which every
        running request waits for.
    """

    def __init__(self, runner: TimedRunner, *, read_seconds: float = 0.0, load_seconds: float = 0.0, **limits: Any):
        self.timed = runner
        self.idle = 0.0
        self.read_seconds, self.load_seconds = read_seconds, load_seconds
        self.reads: list[float] = []
        self.loads = 0
        super().__init__(runner, **limits)
        self.scheduler._clock = self.clock
        load = runner.load_adapter

        def timed_load(slot: int, adapter: object) -> None:
            self.loads += 1
            runner.busy += load_seconds
            load(slot, adapter)

        self.residency._load = timed_load

    def clock(self) -> float:
        return self.timed.busy + self.idle

    def play(self, arrivals: Iterable[Arrival]) -> list[Times]:
        """Until everything has ended; what each request saw."""
        queue = list(arrivals)
        heapq.heapify(queue)
        times: dict[str, Times] = {}
        while queue or self.scheduler.live:
            while queue and queue[0].at <= self.clock():
                arrival = heapq.heappop(queue)
                name = str(len(times))
                times[name] = Times(arrival)
                try:
                    self.add(
                        name,
                        arrival.prompt,
                        arrival.max_tokens,
                        tenant=arrival.tenant,
                        adapter=arrival.adapter,
                        **arrival.values,
                    )
                except Overloaded:
                    times[name].refused = True
            self._read()
            before = {name: len(tokens) for name, tokens in self.outputs.items()}
            self.now = self.clock() - 0.01
            computed = self.step()
            if not computed:  # nothing to compute: until the next arrival or the next read
                upcoming = [*self.reads[:1], *([queue[0].at] if queue else [])]
                self.idle += max(0.001, min(upcoming, default=self.clock()) - self.clock())
            for name, tokens in self.outputs.items():
                times[name].tokens += [self.clock()] * (len(tokens) - before.get(name, 0))
            for name in [name for name in self.done if name in times]:
                times[name].refused |= self.done[name].error is not None
                self.outputs.pop(name, None)
                del self.done[name]
        return list(times.values())

    def _read(self) -> None:
        """Ends the reads that have had their time; the disk gives one after the other."""
        while len(self.reads) < len(self.executor.jobs):
            self.reads.append(max([self.clock(), *self.reads[-1:]]) + self.read_seconds)
        while self.reads and self.reads[0] <= self.clock():
            self.reads.pop(0)
            self.executor.finish()


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


__all__ = ["Arrival", "Clocked", "Path", "TimedRunner", "Times", "quantile"]
