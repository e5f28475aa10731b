"""Metrics under vLLM's names, so that routers and dashboards made for it work, beside our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from inference.front.core_link import CoreLink
from inference.front.core_metrics import AdapterNames, CoreState
from inference.front.tenant_metrics import TenantMetrics
from inference.protocol import FinishReason
from inference.versions import EngineVersion

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
INTER_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
REQUEST_SECONDS = (0.01, 0.03, 0.1, 0.3, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class FrontMetrics:
    """What passes through the front, and what the core says of itself.

    Two parts: numbers, for everybody; and what names tenants or adapters, for those who may know.

    :ivar tenants: by tenant.
    """

    def __init__(self, link: CoreLink, model: str, version: EngineVersion) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._model = model
        self._numbers, self._names = CollectorRegistry(), CollectorRegistry()
        self._numbers.register(CoreState(link, model))
        self._names.register(AdapterNames(link))
        self.tenants = TenantMetrics()
        self._names.register(self.tenants)
        build = Gauge(
            "loraplex:build_info", "What serves", ["version", "weights", "fingerprint"], registry=self._numbers
        )
        build.labels(version.engine, version.weights, version.base).set(1)

        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that began to answer")
        self.generated_tokens = self._counter("vllm:generation_tokens", "Tokens handed out")
        seconds, tokens = REQUEST_SECONDS, TOKENS
        self.first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From acceptance to the first token", FIRST_TOKEN_SECONDS
        )
        self.inter_token = self._histogram(
            "vllm:inter_token_latency_seconds", "Between tokens of a request", INTER_TOKEN_SECONDS
        )
        self.per_token = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean of a request after its first", INTER_TOKEN_SECONDS
        )
        self.whole = self._histogram("vllm:e2e_request_latency_seconds", "From acceptance to the end", seconds)
        self.queue = self._histogram("vllm:request_queue_time_seconds", "Waiting before the first step", seconds)
        self.prefill = self._histogram("vllm:request_prefill_time_seconds", "From that to the first token", seconds)
        self.decode = self._histogram("vllm:request_decode_time_seconds", "From the first token to the last", seconds)
        self.prompt_length = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", tokens)
        self.output_length = self._histogram("vllm:request_generation_tokens", "Generated tokens of a request", tokens)
        self.max_tokens = self._histogram("vllm:request_params_max_tokens", "max_tokens of a request", tokens)
        finished = Counter(
            "vllm:request_success", "Requests ended", ["finished_reason", "model_name"], registry=self._numbers
        )
        self.finished = {reason: finished.labels(reason, model) for reason in get_args(FinishReason)}

    def text(self, *, names: bool) -> bytes:
        """Prometheus' text format; ``names``: with what tells tenants and adapters apart."""
        numbers = generate_latest(self._numbers)
        return numbers + generate_latest(self._names) if names else numbers

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self._numbers).labels(self._model)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, ["model_name"], registry=self._numbers, buckets=buckets).labels(self._model)
