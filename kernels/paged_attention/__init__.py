"""Attention over a paged KV cache; ``naive.py`` is the specification, ``README.md`` the maths."""

from paged_attention.errors import AttentionArgumentError
from paged_attention.fixed_tiles import FixedTiles
from paged_attention.naive import attention_naive
from paged_attention.tiles import Sequence, Tiles

__all__ = ["AttentionArgumentError", "FixedTiles", "Sequence", "Tiles", "attention_naive"]
