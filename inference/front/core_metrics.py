"""What the core said after its last step, as metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inference.core.messages import ADAPTER_LOAD_SECONDS
from inference.front.core_link import CoreLink


class CoreState(Collector):
    """Queue, cache, steps and adapters, as numbers."""

    def __init__(self, link: CoreLink, model: str) -> None:
        self._link, self._model = link, model

    def collect(self) -> Iterator[Metric]:
        stats, ready = self._link.stats, self._link.ready
        for name, text, value in (
            ("vllm:num_requests_running", "Requests in the batch", stats.running),
            ("vllm:num_requests_waiting", "Requests queued or waiting for their adapter", stats.waiting),
            ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", stats.blocks_in_use / ready.num_blocks),
            ("loraplex:kv_blocks_cached", "KV blocks kept only for reuse", stats.blocks_cached),
            ("loraplex:kv_blocks", "KV blocks altogether", ready.num_blocks),
            ("loraplex:adapter_slots", "Adapters that fit on the device at a time", ready.num_slots),
            ("loraplex:adapters_resident", "Adapters in a slot", len(stats.resident)),
            ("loraplex:adapters_in_host_memory", "Adapters kept for a slot to load", stats.host_adapters),
            ("loraplex:adapter_host_bytes", "What they hold", stats.host_bytes),
            ("loraplex:adapters_waiting", "Adapters being read or waiting for a slot", len(stats.waiting_adapters)),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", stats.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.prefix_hits),
            ("vllm:num_preemptions", "Requests that gave up their blocks", stats.preemptions),
            ("loraplex:steps", "Forward steps", stats.steps),
            ("loraplex:adapter_load_failures", "Adapters that could not be read", stats.adapter_failures),
            ("loraplex:adapter_host_hits", "Loads that needed no disk", stats.host_hits),
            ("loraplex:adapter_reads", "Adapters read from disk, ahead of their turn included", stats.host_reads),
            ("vllm:spec_decode_num_draft_tokens", "Tokens guessed", stats.guessed),
            ("vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right", stats.guessed_right),
            ("loraplex:adapter_evictions", "Adapters that made room for another", stats.adapter_evictions),
        ):
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        loads = HistogramMetricFamily(
            "loraplex:adapter_load_seconds", "From an adapter's first request to its slot", labels=["model_name"]
        )
        bounds = [*map(str, ADAPTER_LOAD_SECONDS), "+Inf"]
        counts = accumulate(stats.adapter_loads or [0] * len(bounds))
        loads.add_metric([self._model], list(zip(bounds, counts, strict=True)), stats.adapter_load_seconds)
        yield loads
        # vLLM's: how large the cache is, in labels.
        cache = GaugeMetricFamily("vllm:cache_config_info", "The KV cache", labels=["block_size", "num_gpu_blocks"])
        cache.add_metric([str(ready.block_size), str(ready.num_blocks)], 1)
        yield cache


class AdapterNames(Collector):
    """Which adapters are in use, by their digests."""

    def __init__(self, link: CoreLink) -> None:
        self._link = link

    def collect(self) -> Iterator[Metric]:
        stats = self._link.stats
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
