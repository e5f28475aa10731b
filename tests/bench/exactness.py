"""The check that comes before any figure: sixteen in flight, mixed, must equal each prompt alone."""

from __future__ import annotations

from typing import Any

MARGIN = 1e-4
"""Where the reference's two best logits lie closer than this, either token is right and the comparison stops."""


def compare(expected: list[dict[str, Any]], answers: list[list[int]]) -> tuple[int, int]:
    """(tokens compared, rows cut short by a near-tie); ``SystemExit`` at the first token that differs."""
    compared = ties = 0
    for row, (want, got) in enumerate(zip(expected, answers, strict=True)):
        for position, (token, margin) in enumerate(zip(want["tokens"], want["margins"], strict=True)):
            if margin < MARGIN:
                ties += 1
                break
            if position >= len(got) or got[position] != token:
                shown = got[position] if position < len(got) else "nothing"
                raise SystemExit(
                    f"not exact, so no figures: row {row} (adapter {want['adapter']}), token {position}: "
                    f"{shown} instead of {token}, with a margin of {margin:.4g} between the two best logits"
                )
            compared += 1
    return compared, ties
