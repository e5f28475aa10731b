from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Container, Sequence
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
    """What one worker probably has cached: the chains of the prompts sent to it. When it is full, whoever has the most
    in it loses what was used least recently: nobody's long prompts make it forget everybody else's.

    A guess, not a fact: it only orders workers, and a wrong guess costs a recomputed prefix.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._seen: dict[str, OrderedDict[bytes, None]] = {}
        self._size = 0

    def matched(self, chain: Sequence[bytes], namespace: str) -> int:
        """How many of the first blocks are probably there."""
        seen: Container[bytes] = self._seen.get(namespace, ())
        for count, key in enumerate(chain):
            if key not in seen:
                return count
        return len(chain)

    def add(self, chain: Sequence[bytes], namespace: str) -> None:
        if not chain:
            return
        seen = self._seen.setdefault(namespace, OrderedDict())
        self._size -= len(seen)
        for key in reversed(chain):  # without its beginning the rest of a prompt is of no use
            seen[key] = None
            seen.move_to_end(key)
        self._size += len(seen)
        while self._size > self._capacity:
            self._shrink(self._size - self._capacity)

    def clear(self) -> None:
        self._seen.clear()
        self._size = 0

    def _shrink(self, most: int) -> None:
        """By up to ``most`` hashes of whoever has the most."""
        namespace, seen = max(self._seen.items(), key=lambda held: len(held[1]))
        for _ in range(min(most, len(seen))):
            seen.popitem(last=False)
            self._size -= 1
        if not seen:
            del self._seen[namespace]
