from __future__ import annotations

from decimal import Decimal


def parts(micro: int) -> tuple[int, str]:
    """Micro-units, not negative, as whole units of the currency and what is after the point: ``12, "50"``."""
    whole, _, part = f"{Decimal(micro).scaleb(-6):.6f}".partition(".")
    return int(whole), part.rstrip("0").ljust(2, "0")
