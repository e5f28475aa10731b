from __future__ import annotations

from fleet.dialects.base import Probe
from fleet.dialects.prometheus import labels_of, samples


def read_probe(text: str) -> Probe:
    """What vLLM's metric names say; a series that is missing counts as zero.

    ``vllm:lora_requests_info`` carries names in its labels and a timestamp as its value: the newest series wins.
    ``loraplex:adapter_resident`` and ``loraplex:adapter_slots`` are the native worker's: one series per adapter on the
    device, value 1, and how many fit.
    """
    numbers: dict[str, float] = {}
    newest = float("-inf")
    active: frozenset[str] = frozenset()
    resident: set[str] = set()
    slots: int | None = None
    for name, labels, value in samples(text):
        if name == "vllm:lora_requests_info":
            if value > newest:
                newest, active = value, _names(labels_of(labels).get("running_lora_adapters", ""))
        elif name == "loraplex:adapter_resident":
            if value > 0:
                resident.add(labels_of(labels).get("digest", ""))
        elif name == "loraplex:adapter_slots":
            slots = int(value)
        elif name.startswith("vllm:"):
            numbers[name] = numbers.get(name, 0.0) + value
    return Probe(
        running=int(numbers.get("vllm:num_requests_running", 0)),
        waiting=int(numbers.get("vllm:num_requests_waiting", 0)),
        kv_usage=min(1.0, max(0.0, numbers.get("vllm:kv_cache_usage_perc", 0.0))),
        resident=active | resident,
        slots=slots,
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())
