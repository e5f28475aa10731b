"""What each tenant used, for as many tenants as a time series database bears."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

NAMED_TENANTS = 64
OTHER = "other"


@dataclass(slots=True)
class _Totals:
    """:ivar first: seconds to first tokens, altogether. :ivar queued: those of them in the core's queue."""

    requests: int = 0
    began: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    first: float = 0.0
    queued: float = 0.0


class TenantMetrics(Collector):
    """The first ``named`` tenants since the start have series of their own, the rest share one.

    A tenant never changes from one to the other: a counter must not fall.
    """

    def __init__(self, named: int = NAMED_TENANTS) -> None:
        self._named = named
        self._totals: dict[str, _Totals] = {OTHER: _Totals()}

    def began(self, tenant: str, prompt: int, cached: int, *, seconds: float, queued: float) -> None:
        """A request's first token; ``cached`` of its ``prompt`` tokens came from the tenant's own prefixes."""
        totals = self._of(tenant)
        totals.began += 1
        totals.prompt += prompt
        totals.cached += cached
        totals.first += seconds
        totals.queued += queued

    def gained(self, tenant: str, tokens: int) -> None:
        self._of(tenant).generated += tokens

    def ended(self, tenant: str) -> None:
        """A request is over, however it ended."""
        self._of(tenant).requests += 1

    def collect(self) -> Iterator[Metric]:
        for name, text, field in (
            ("requests", "Requests that ended, by tenant", "requests"),
            ("prompt_tokens", "Prompt tokens of requests that began to answer, by tenant", "prompt"),
            ("cached_prompt_tokens", "Those of them found in the tenant's own cached prefixes", "cached"),
            ("generation_tokens", "Tokens handed out, by tenant", "generated"),
        ):
            counter = CounterMetricFamily(f"loraplex:tenant_{name}", text, labels=["tenant"])
            for tenant, totals in self._totals.items():
                counter.add_metric([tenant], getattr(totals, field))
            yield counter
        for name, text, field in (
            ("time_to_first_token_seconds", "From acceptance to the first token, by tenant", "first"),
            ("queue_time_seconds", "Of it in the queue, by tenant", "queued"),
        ):
            summary = SummaryMetricFamily(f"loraplex:tenant_{name}", text, labels=["tenant"])
            for tenant, totals in self._totals.items():
                summary.add_metric([tenant], count_value=totals.began, sum_value=getattr(totals, field))
            yield summary

    def _of(self, tenant: str) -> _Totals:
        totals = self._totals.get(tenant)
        if totals is None:
            name = tenant if len(self._totals) <= self._named else OTHER
            totals = self._totals.setdefault(name, _Totals())
        return totals
