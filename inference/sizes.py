"""What a runner is asked to hold: whether it can be, and what follows from it."""

from __future__ import annotations

from inference.errors import ConfigError


def check_sizes(num_slots: int, **sizes: int | None) -> None:
    """Raises :class:`ConfigError` for slots below 0 and anything else below 1. ``None``: to be decided later."""
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} has to be at least 1, not {value}")
    if num_slots < 0:
        raise ConfigError(f"num_slots cannot be negative ({num_slots})")


def longest_sequence(context: int, asked: int | None, num_blocks: int | None, block_size: int) -> int:
    """In tokens. Raises :class:`ConfigError` for more than the model takes.

    :param context: that it takes. :param num_blocks: of the KV pool; ``None``: more than are needed.
    """
    if asked is not None:
        if asked > context:
            raise ConfigError(f"max_model_len {asked} exceeds the model's {context}")
        return asked
    return context if num_blocks is None else min(context, num_blocks * block_size)
