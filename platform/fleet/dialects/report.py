from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.dialects.prometheus import labels_of, samples
from fleet.histogram import NOTHING, Histogram

_LATENCIES = {
    "first_token": "vllm:time_to_first_token_seconds",
    "inter_token": "vllm:inter_token_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
}

_COUNTS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "slots": "loraplex:adapter_slots",
    "kv_blocks": "loraplex:kv_blocks",
    "kv_blocks_cached": "loraplex:kv_blocks_cached",
    "adapters_loading": "loraplex:adapters_waiting",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generated_tokens": "vllm:generation_tokens_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
}


@dataclass(frozen=True, slots=True)
class Report:
    """How a worker is, for people: everything its metrics say that an operator looks at. What it does not say is
    ``None`` or empty. Counters run since the worker's start.

    :param kv_usage: share of KV blocks in use, 0 to 1.
    :param slots: adapters that fit on the device at a time. :param resident: digests of those in a slot.
    :param finished: requests that ended, by reason.
    :param version: of the engine. :param weights: their format.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_blocks: int | None = None
    kv_blocks_cached: int | None = None
    slots: int | None = None
    adapters_loading: int | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    preemptions: int | None = None
    resident: tuple[str, ...] = ()
    finished: Mapping[str, int] = field(default_factory=dict)
    version: str | None = None
    weights: str | None = None
    first_token: Histogram = NOTHING
    inter_token: Histogram = NOTHING
    queue: Histogram = NOTHING


def read_report(text: str) -> Report:
    """From the native worker's metrics, in Prometheus' text format. A line that cannot be read is left out."""
    totals: dict[str, float] = defaultdict(float)
    buckets: dict[str, dict[float, int]] = defaultdict(dict)
    finished: dict[str, int] = defaultdict(int)
    resident: set[str] = set()
    build: dict[str, str] = {}
    latencies = {f"{name}_bucket": field for field, name in _LATENCIES.items()}
    for name, text_of_labels, value in samples(text):
        if name in latencies:
            bound = _number(labels_of(text_of_labels).get("le", ""))
            if bound is not None:
                found = buckets[latencies[name]]
                found[bound] = found.get(bound, 0) + int(value)
        elif name == "vllm:request_success_total":
            finished[labels_of(text_of_labels).get("finished_reason", "")] += int(value)
        elif name == "loraplex:adapter_resident":
            resident |= {labels_of(text_of_labels).get("digest", "")} if value > 0 else set()
        elif name == "loraplex:build_info":
            build = labels_of(text_of_labels)
        else:
            totals[name] += value
    found_out: dict[str, Any] = {field: int(totals[name]) for field, name in _COUNTS.items() if name in totals}
    found_out |= {name: Histogram.of(found) for name, found in buckets.items()}
    return Report(
        **found_out,
        kv_usage=min(1.0, max(0.0, totals.get("vllm:kv_cache_usage_perc", 0.0))),
        resident=tuple(sorted(resident)),
        finished=dict(finished),
        version=build.get("version"),
        weights=build.get("weights"),
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
