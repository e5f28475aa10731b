from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from inference.protocol import Usage

FIRST_TOKEN_BUCKETS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0)
"""Seconds."""

OTHER = "other"
MOST_CODES = 64


class Meters:
    """What one process has done since it began: totals without names of tenants, keys or models."""

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._first = [0] * (len(FIRST_TOKEN_BUCKETS) + 1)
        self._first_sum = 0.0

    def first_token(self, seconds: float) -> None:
        """From the request's arrival."""
        self._first[bisect_left(FIRST_TOKEN_BUCKETS, seconds)] += 1
        self._first_sum += seconds

    def ended(self, outcome: str, usage: Usage) -> None:
        """An admitted request, with what it is charged for."""
        self._ended[outcome] += 1
        self._tokens["prompt"] += usage.prompt_tokens
        self._tokens["cached_prompt"] += usage.cached_tokens
        self._tokens["completion"] += usage.completion_tokens

    def refused(self, code: str | None) -> None:
        """A request that ended with an error, by the error's code."""
        known = code is not None and (code in self._refused or len(self._refused) < MOST_CODES)
        self._refused[code if known and code is not None else OTHER] += 1

    def text(self, *, running: int, sockets: int) -> str:
        """In Prometheus' text format."""
        lines = [
            *_series("requests_ended_total", "counter", "Admitted requests by outcome.", "outcome", self._ended),
            *_series("tokens_total", "counter", "Tokens charged, by kind.", "kind", self._tokens),
            *_series(
                "errors_total", "counter", "Generating requests that got an error, by code.", "code", self._refused
            ),
            *_head("requests_running", "gauge", "Admitted requests that are not settled yet."),
            f"loraplex_gateway_requests_running {running}",
            *_head("sockets_open", "gauge", "Open WebSockets."),
            f"loraplex_gateway_sockets_open {sockets}",
            *_head("first_token_seconds", "histogram", "From a request's arrival to its first token."),
        ]
        total = 0
        for bound, count in zip((*map(str, FIRST_TOKEN_BUCKETS), "+Inf"), self._first, strict=True):
            total += count
            lines.append(f'loraplex_gateway_first_token_seconds_bucket{{le="{bound}"}} {total}')
        lines.append(f"loraplex_gateway_first_token_seconds_sum {self._first_sum:.6f}")
        lines.append(f"loraplex_gateway_first_token_seconds_count {total}")
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP loraplex_gateway_{name} {help_text}", f"# TYPE loraplex_gateway_{name} {kind}"]


def _series(name: str, kind: str, help_text: str, label: str, values: Counter[str]) -> list[str]:
    samples = [f'loraplex_gateway_{name}{{{label}="{value}"}} {count}' for value, count in sorted(values.items())]
    return [*_head(name, kind, help_text), *samples]
