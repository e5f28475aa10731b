"""What a public prefix is called: the worker says it, the control plane compares it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def prefix_id(adapter: str | None, tokens: Sequence[int]) -> str:
    """Hex sha256 of what the prefix is. :param adapter: digest of the adapter it is for; ``None``: the base model."""
    return hashlib.sha256((adapter or "base").encode() + b"\n" + array("I", tokens).tobytes()).hexdigest()
