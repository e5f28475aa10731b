"""``/health`` computes; ``/metrics`` only tells."""

from __future__ import annotations

import asyncio
import time

import orjson
from starlette.requests import Request
from starlette.responses import Response

from inference.errors import InferenceError
from inference.front.errors import ApiError
from inference.front.service import Service

REUSE_SECONDS = 1.0
"""A step's answer is good for so long: the endpoint is open, and must not become a way to load the device."""


class HealthCheck:
    """The age of the last step while there is work; a forward step under a deadline where that says nothing."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._probe: asyncio.Task[None] | None = None
        self._started = 0.0

    async def problem(self) -> tuple[str, str] | None:
        """Code and sentence of why it should get no requests; ``None``: healthy."""
        if self._service.draining and not self._service.link.dead.is_set():
            return "draining", "The worker is shutting down"
        return await self.core_problem()

    async def core_problem(self) -> tuple[str, str] | None:
        """Why what it has will not be computed; ``None``: it is."""
        service, link = self._service, self._service.link
        if link.dead.is_set():
            return "engine_dead", "The core has stopped"
        now = time.monotonic()
        if now - link.last_step < REUSE_SECONDS or (link.active and now - link.busy_since < REUSE_SECONDS):
            return None  # a step has just ended, or had no time to
        if link.stats.running:
            age = now - link.last_step
            if age > service.health_deadline:
                return "engine_stuck", f"The last step ended {age:.1f} s ago with requests running"
            return None
        return await self._forward_step()

    async def _forward_step(self) -> tuple[str, str] | None:
        deadline = self._service.health_deadline
        now = time.monotonic()
        if self._probe is None or (self._probe.done() and now - self._started > REUSE_SECONDS):
            self._probe, self._started = asyncio.create_task(self._service.link.probe()), now
        left = self._started + deadline - now
        # Waited for, not awaited: all callers share one probe, and one of them leaving does not end it.
        await asyncio.wait([self._probe], timeout=max(left, 0.0))
        if not self._probe.done():
            return "engine_stuck", f"A forward step did not end within {deadline:g} s"
        error = self._probe.exception()
        if isinstance(error, InferenceError):
            return "engine_failed", str(error)
        if error is not None:
            raise error
        return None


async def health(request: Request) -> Response:
    service: Service = request.app.state.service
    found = await request.app.state.health.problem()
    if found is not None:
        raise ApiError(503, found[1], found[0], retry_after=1)
    stats = service.link.stats
    return Response(
        orjson.dumps(
            {
                "status": "ok",
                "fingerprint": service.verifier.base,
                "version": service.version.engine,
                "weights": service.version.weights,
                "running": stats.running,
                "waiting": stats.waiting,
            }
        ),
        media_type="application/json",
    )


async def metrics(request: Request) -> Response:
    """Numbers for everybody; the names of tenants and adapters for operators, unless the worker was told otherwise."""
    service: Service = request.app.state.service
    if "Authorization" in request.headers:
        service.check_operator(request)
    text = service.metrics.text(names=service.open_metrics or "Authorization" in request.headers)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
