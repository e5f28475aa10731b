"""The times of one request, as it becomes part of the metrics."""

from __future__ import annotations

import time

from inference.front.metrics import FrontMetrics
from inference.protocol import FinishReason, WorkerTimings


class RequestTimes:
    """Starts with the request's acceptance; :meth:`gained` with every handful of tokens, :meth:`ended` once.

    Each choice of a request has its own; the prompt is counted with the one whose ``prompt_tokens`` are not 0.

    :ivar last: when the last tokens came, by the monotonic clock.
    """

    def __init__(self, metrics: FrontMetrics, *, tenant: str, prompt_tokens: int, max_tokens: int) -> None:
        self._metrics = metrics
        self._tenant = tenant
        self._prompt_tokens, self._max_tokens = prompt_tokens, max_tokens
        self._accepted = self.last = time.monotonic()
        self._first: float | None = None
        self._queued = 0.0
        self._tokens = 0
        self._over = False

    def gained(self, tokens: int, *, cached: int, waited: float | None) -> None:
        """``tokens`` came, of a request that found ``cached`` prompt tokens and ``waited`` seconds in the queue."""
        now, metrics = time.monotonic(), self._metrics
        metrics.generated_tokens.inc(tokens)
        if self._first is None:
            self._first = now
            seconds = now - self._accepted
            queued = self._queued = min(waited or 0.0, seconds)
            metrics.prompt_tokens.inc(self._prompt_tokens)
            metrics.first_token.observe(seconds)
            metrics.queue.observe(queued)
            metrics.prefill.observe(seconds - queued)
            metrics.tenants.began(self._tenant, self._prompt_tokens, cached, seconds=seconds, queued=queued)
        else:
            metrics.inter_token.observe((now - self.last) / max(tokens, 1))
        metrics.tenants.gained(self._tenant, tokens)
        self._tokens += tokens
        self.last = now

    def timings(self, last: float) -> WorkerTimings | None:
        """Of a request whose last tokens, over all choices, came at ``last``; ``None`` before its first ones."""
        if self._first is None:
            return None
        prefill = self._first - self._accepted - self._queued
        return WorkerTimings(self._queued * 1000, prefill * 1000, max(last - self._first, 0.0) * 1000)

    def ended(self, reason: FinishReason) -> None:
        """Only the first reason counts: whoever closes a request that has ended says nothing new."""
        if self._over:
            return
        self._over = True
        now, metrics = time.monotonic(), self._metrics
        metrics.finished[reason].inc()
        metrics.tenants.ended(self._tenant)
        metrics.whole.observe(now - self._accepted)
        if self._prompt_tokens:
            metrics.prompt_length.observe(self._prompt_tokens)
        metrics.output_length.observe(self._tokens)
        metrics.max_tokens.observe(self._max_tokens)
        if self._first is None:
            return
        metrics.decode.observe(self.last - self._first)
        if self._tokens > 1:
            metrics.per_token.observe((self.last - self._first) / (self._tokens - 1))
