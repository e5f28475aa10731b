"""Where one request's time went, as a bar."""

from __future__ import annotations

from dataclasses import dataclass

from tenants.models import InferenceRequest

_LEAST = 0.4
"""Percent: a part that took no time is still seen."""


@dataclass(frozen=True, slots=True)
class Part:
    """:param kind: of the colour. :param x: where it begins; it and ``width`` in percent of the bar."""

    name: str
    kind: str
    ms: int
    x: float = 0.0
    width: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ms / 1000


def duration_ms(row: InferenceRequest) -> int | None:
    """From admission to the end, ``None`` while it runs; 0 where the clock was set back between the two."""
    if row.settled_at is None:
        return None
    return max(round((row.settled_at - row.admitted_at).total_seconds() * 1000), 0)


def bar_of(row: InferenceRequest) -> list[Part]:
    """Nothing while it runs. What happened before the first token is told apart as far as the worker told it."""
    whole = duration_ms(row)
    if whole is None:
        return []
    first = row.first_token_ms
    if first is None:
        return _placed([Part("Without a first token", "other", whole)])
    parts = []
    if row.queue_ms is not None and row.prefill_ms is not None:
        rest = max(first - row.queue_ms - row.prefill_ms, 0)
        parts = [
            Part("On the way to the worker and back", "other", rest),
            Part("Queue", "queue", row.queue_ms),
            Part("Prefill", "prefill", row.prefill_ms),
        ]
    else:
        parts = [Part("Up to the first token", "prefill", first)]
    return _placed([*parts, Part("Decode", "decode", max(whole - first, 0))])


def _placed(parts: list[Part]) -> list[Part]:
    total = sum(part.ms for part in parts)
    if not total:
        shares = [100 / len(parts)] * len(parts)
    else:
        shares = [max(part.ms / total * 100, _LEAST) for part in parts]
        shares = [share * 100 / sum(shares) for share in shares]
    placed, x = [], 0.0
    for part, share in zip(parts, shares, strict=True):
        placed.append(Part(part.name, part.kind, part.ms, round(x, 3), round(share, 3)))
        x += share
    return placed
