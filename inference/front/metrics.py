"""Metrics under vLLM's names, so that routers and dashboards made for it work, beside our own."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference.front.core_link import CoreLink
from inference.front.tenant_metrics import TenantMetrics

FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
INTER_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class _CoreState(Collector):
    """What the core said after its last step."""

    def __init__(self, link: CoreLink, model: str) -> None:
        self._link, self._model = link, model

    def collect(self) -> Iterator[Metric]:
        stats, total = self._link.stats, self._link.ready.num_blocks
        gauges = {
            "vllm:num_requests_running": ("Requests in the batch", stats.running),
            "vllm:num_requests_waiting": ("Requests queued or waiting for their adapter", stats.waiting),
            "vllm:kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1", stats.blocks_in_use / total),
            "loraplex:kv_blocks_cached": ("KV blocks kept only for reuse", stats.blocks_cached),
            "loraplex:kv_blocks": ("KV blocks altogether", total),
        }
        counters = {
            "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache", stats.prefix_queries),
            "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache", stats.prefix_hits),
            "vllm:num_preemptions": ("Requests that gave up their blocks", stats.preemptions),
            "loraplex:steps": ("Forward steps", stats.steps),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        # As in vLLM the value is a time stamp: the newest series is the current one.
        lora = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Adapters of running and waiting requests",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        running, waiting = ",".join(stats.running_adapters), ",".join(stats.waiting_adapters)
        lora.add_metric([str(self._link.ready.num_slots), running, waiting], time.time())
        yield lora
        resident = GaugeMetricFamily("loraplex:adapter_resident", "1 while a slot holds the adapter", labels=["digest"])
        for digest in stats.resident:
            resident.add_metric([digest], 1)
        yield resident


class FrontMetrics:
    """Counts what passes through the front.

    :ivar tenants: the same by tenant.
    """

    def __init__(self, link: CoreLink, model: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(_CoreState(link, model))
        self.tenants = TenantMetrics()
        self._registry.register(self.tenants)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model_name"], registry=self._registry).labels(model)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["model_name"], registry=self._registry, buckets=buckets).labels(model)

        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens of requests that began to answer")
        self._generated = counter("vllm:generation_tokens", "Tokens handed out")
        self._first = histogram("vllm:time_to_first_token_seconds", "From acceptance", FIRST_TOKEN_SECONDS)
        self._between = histogram(
            "vllm:inter_token_latency_seconds", "Between tokens of a request", INTER_TOKEN_SECONDS
        )

    def tokens(self, seconds: float, count: int, prompt_tokens: int | None) -> None:
        """``count`` tokens of one request, ``seconds`` after its last; the first come with ``prompt_tokens``."""
        self._generated.inc(count)
        if prompt_tokens is not None:
            self._prompt.inc(prompt_tokens)
            self._first.observe(seconds)
        else:
            self._between.observe(seconds / max(count, 1))

    def text(self) -> bytes:
        return generate_latest(self._registry)
