"""Numbers of things, in words."""

from __future__ import annotations


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """``1 batch``, ``2 batches``. :param plural: where it is not the singular with an ``s``."""
    return f"{count} {singular if count == 1 else plural or f'{singular}s'}"
