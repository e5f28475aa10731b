from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fleet.breaker import Breaker
from fleet.dialects.base import Dialect, Job, Probe
from fleet.locality import PrefixIndex
from inference.errors import EngineDead, GrantRefused, InferenceError, InvalidRequest, WorkerUnavailable
from inference.protocol import Delta

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""How often the fingerprint and fitness are asked: the answer may cost the worker a forward step."""

PROBE_DEADLINE = 2.0
STALE_SECONDS = 5.0
"""Metrics older than this say nothing: the worker then counts as full."""

LACKING_SECONDS = 60.0
"""How long a worker that could not load an adapter is not asked for it: it failed at once, so it always looks idle."""


class Replica:
    """A worker as this process sees it: last probe, breaker, requests it has there, prompts it sent there."""

    def __init__(self, *, name: str, url: str, fingerprint: str, dialect: Dialect) -> None:
        self.name = name
        self.url = url
        self.fingerprint = fingerprint
        self.dialect = dialect
        self.draining = False
        self.breaker = Breaker()
        self.prefixes = PrefixIndex()
        self.in_flight = 0
        self.probe = Probe()
        self.healthy = False
        self.problem: str | None = "not asked yet"
        self.asked_at = float("-inf")  # how it is, whatever it answered
        self._probed_at = float("-inf")
        self._checked_at = float("-inf")
        self._lacking: dict[str | None, float] = {}  # digest → until when

    @property
    def available(self) -> bool:
        return self.healthy and not self.draining and self.breaker.allows

    @property
    def stale(self) -> bool:
        return time.monotonic() - self._probed_at > STALE_SECONDS

    @property
    def queued(self) -> int:
        """Requests there or on their way; this process's own count bridges the time between two probes."""
        return max(self.probe.running + self.probe.waiting, self.in_flight)

    async def refresh(self) -> None:
        """Ask how it is. Never raises: what is wrong becomes ``problem`` and ``healthy`` turns false."""
        now = time.monotonic()
        try:
            async with asyncio.timeout(PROBE_DEADLINE):
                if not self.healthy or now - self._checked_at >= CHECK_SECONDS:
                    await self._check()
                    self._checked_at = now
                self.probe = await self.dialect.probe()
            self._probed_at = now
            self._set_problem(None)
        except TimeoutError:
            self._set_problem(f"did not answer within {PROBE_DEADLINE:g} s")
        except InferenceError as error:
            self._set_problem(str(error) or type(error).__name__)
        except Exception as error:
            # Whatever answers at a registered address, it must not stop the polling of the others.
            logger.exception("worker %s: its answer cannot be read", self.name)
            self._set_problem(type(error).__name__)
        self.asked_at = now  # not where whoever asked left meanwhile: others ask again

    async def _check(self) -> None:
        served = await self.dialect.check()
        if served is not None and served != self.fingerprint:
            raise WorkerUnavailable(f"serves model {served[:12]}, registered as {self.fingerprint[:12]}")

    def _set_problem(self, problem: str | None) -> None:
        if problem != self.problem:
            logger.log(logging.WARNING if problem else logging.INFO, "worker %s: %s", self.name, problem or "serves")
        self.problem = problem
        if problem and self.healthy:
            self.prefixes.clear()  # it may come back with an empty cache
            self._lacking.clear()  # and with its store
        self.healthy = problem is None

    def lacks(self, digest: str | None) -> bool:
        """Whether it could not load the adapter a moment ago."""
        return self._lacking.get(digest, 0.0) > time.monotonic()

    def note_lacking(self, digest: str | None) -> None:
        now = time.monotonic()
        self._lacking = {known: until for known, until in self._lacking.items() if until > now}
        self._lacking[digest] = now + LACKING_SECONDS

    def refused(self, job: Job) -> str | None:
        """The sampling field that this kind of server cannot honour."""
        return next((name for name in job.sampling if name in self.dialect.capabilities.refuses), None)

    async def generate(self, job: Job) -> AsyncGenerator[Delta, None]:
        """As :meth:`Dialect.generate`, counted and with the breaker told how it went."""
        if field := self.refused(job):
            raise InvalidRequest(f"The model's server does not support {field}", field)
        self.in_flight += 1
        self.breaker.attempt()
        answered = False
        try:
            async with aclosing(self.dialect.generate(job)) as deltas:
                async for delta in deltas:
                    if not answered:
                        answered = True
                        self.breaker.answers()
                    yield delta
            self.breaker.succeeded()
        except (WorkerUnavailable, EngineDead):
            self.breaker.failed()
            self._checked_at = float("-inf")
            raise
        except GrantRefused:
            self.breaker.failed()
            raise
        except InferenceError:
            self.breaker.succeeded()  # it answers: full or refusing is not broken
            raise
        finally:
            self.in_flight -= 1
