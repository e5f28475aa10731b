"""A whole core in a thread: the real loop over a real (tiny) model, spoken to by messages."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.constraints.constraints import Constraints
from inference.core.limits import Limits
from inference.core.loop import Loop, Stop
from inference.core.messages import Abort, Message, Step, Submit
from inference.core.step import Runner
from inference.protocol import Constraint, SamplingParams


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: list[Any] | None = None
    times: list[float] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None


class CoreThread:
    """Requests go in with :meth:`ask`; :meth:`wait` reads what the core says until they have ended."""

    def __init__(
        self, runner: Runner, constraints: Callable[[Callable[[], None]], Constraints] | None, **limits: Any
    ) -> None:
        self.said: queue.SimpleQueue[Message] = queue.SimpleQueue()
        bounds = Limits(**{"max_model_len": runner.max_model_len, "max_running": 16, **limits})
        self.loop = Loop(
            runner, bounds, base="base", store=Path("/nowhere"), send=self.said.put, constraints=constraints
        )
        self.answers: dict[str, Answer] = {}
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def ask(
        self, name: str, prompt: list[int], constraint: Constraint | None = None, *, tenant: str = "a", **params: Any
    ) -> str:
        values = {"max_tokens": 32, "temperature": 0.0, **params}
        seed = values.pop("seed", 1)
        wire = SamplingParams(constraint=constraint, **values).wire()
        self.answers[name] = Answer()
        self.loop.inbox.put(Submit(name, prompt, wire, seed, tenant, tenant, None, 0, 1))
        return name

    def abort(self, name: str) -> None:
        self.loop.inbox.put(Abort(name))

    def wait(self, *names: str, seconds: float = 60.0) -> list[Answer]:
        """Until all of them have ended."""
        wanted = [self.answers[name] for name in names]
        deadline = time.monotonic() + seconds
        while not all(answer.ended for answer in wanted):
            self.read(max(0.0, deadline - time.monotonic()))
        return wanted

    def read(self, seconds: float) -> None:
        """One message; raises ``queue.Empty``."""
        message = self.said.get(timeout=seconds)
        if not isinstance(message, Step):
            return
        for name, tokens, finish, *_ in message.gained:
            answer = self.answers[name]
            answer.tokens += tokens
            answer.times += [time.monotonic()] * len(tokens)
            answer.finish = finish
        for name, *error, _ in message.failed:
            self.answers[name].error = error

    def close(self) -> None:
        """Ends the loop and checks that nothing is left behind."""
        self.loop.inbox.put(Stop())
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.loop.scheduler.check_idle()


@contextmanager
def core_thread(runner: Runner, model: Path, vocabulary: Any, **limits: Any) -> Iterator[CoreThread]:
    core = CoreThread(runner, lambda wake: Constraints(vocabulary, model, wake), **limits)
    yield core
    core.close()
