from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of ``doctor`` found. :param advice: what to do; empty when ``ok``."""

    check: str
    ok: bool
    found: str
    advice: str = ""
