"""What each tenant used, for as many tenants as a time series database bears."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

NAMED_TENANTS = 64
OTHER = "other"

_FAMILIES = {
    "loraplex:tenant_prompt_tokens": "Prompt tokens of requests that began to answer, by tenant",
    "loraplex:tenant_cached_prompt_tokens": "Those of them found in the tenant's own cached prefixes",
    "loraplex:tenant_generation_tokens": "Tokens handed out, by tenant",
}


class TenantMetrics(Collector):
    """The first ``named`` tenants since the start have series of their own, the rest share one.

    A tenant never changes from one to the other: a counter must not fall.
    """

    def __init__(self, named: int = NAMED_TENANTS) -> None:
        self._named = named
        self._totals: dict[str, list[int]] = {OTHER: [0, 0, 0]}

    def count(self, tenant: str, prompt: int, cached: int, generated: int) -> None:
        """Tokens of one tenant; ``cached`` of ``prompt`` came from its own prefixes."""
        totals = self._totals.get(tenant)
        if totals is None:
            name = tenant if len(self._totals) <= self._named else OTHER
            totals = self._totals.setdefault(name, [0, 0, 0])
        for index, tokens in enumerate((prompt, cached, generated)):
            totals[index] += tokens

    def collect(self) -> Iterator[Metric]:
        for index, (name, text) in enumerate(_FAMILIES.items()):
            family = CounterMetricFamily(name, text, labels=["tenant"])
            for tenant, totals in self._totals.items():
                family.add_metric([tenant], totals[index])
            yield family
