from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 16
"""Tokens a hash covers; the native worker's default block."""

MOST_BLOCKS = 128
"""Blocks of a prompt that are looked at: 2,048 tokens decide where it goes."""


def prefix_chain(*, fingerprint: str, digest: str | None, namespace: str, prompt: Sequence[int]) -> list[bytes]:
    """Chained hashes of a prompt's full blocks, rooted in everything that separates caches.

    The root is the model, the adapter and the tenant's namespace, each with its length before it; so two tenants'
    prompts never share a hash, and neither do two adapters'.
    """
    state = blake2b(b"loraplex-route-1", digest_size=16)
    for part in (fingerprint, digest or "", namespace):
        data = part.encode()
        state.update(len(data).to_bytes(4, "big") + data)
    chain: list[bytes] = []
    parent = state.digest()
    for start in range(0, min(len(prompt) - len(prompt) % BLOCK_TOKENS, BLOCK_TOKENS * MOST_BLOCKS), BLOCK_TOKENS):
        block = array("I", prompt[start : start + BLOCK_TOKENS]).tobytes()
        parent = blake2b(parent + block, digest_size=16).digest()
        chain.append(parent)
    return chain


class PrefixIndex:
    """What one worker probably has cached: the chains of the prompts sent to it, least recently used out first.

    A guess, not a fact: it only orders workers, and a wrong guess costs a recomputed prefix.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def matched(self, chain: Sequence[bytes]) -> int:
        """How many of the first blocks are probably there."""
        for count, key in enumerate(chain):
            if key not in self._seen:
                return count
        return len(chain)

    def add(self, chain: Sequence[bytes]) -> None:
        for key in chain:
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def clear(self) -> None:
        self._seen.clear()
