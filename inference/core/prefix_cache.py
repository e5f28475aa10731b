"""Which blocks already hold the KV of a prefix, per isolation domain.

The key of a block is a chain of hashes::

    root  = H(version ‖ base fingerprint ‖ KV dtype ‖ adapter digest ‖ namespace)      every part length-prefixed
    block = H(parent ‖ token ids)

Two requests can share a block only if they start from the same root. The namespace comes from the signed grant, so a
hit across tenants cannot be expressed. The owner of a block is the namespace it was computed for.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from inference.core.blocks import BlockPool
from inference.core.shares import ShareRules

VERSION = b"loraplex-kv-1"


@dataclass(frozen=True, slots=True)
class _Entry:
    key: bytes
    parent: bytes
    tokens: bytes


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as fixed-width bytes: equal exactly when the ids are."""
    return array("I", tokens).tobytes()


class PrefixCache:
    """Content of blocks, on top of :class:`~inference.core.blocks.BlockPool`, which decides what is evicted.

    Not thread-safe: only the core's loop uses it.

    :ivar queries: prompt tokens looked up so far; ``hits`` those found.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, base: str, kv_dtype: str, rules: ShareRules | None = None
    ) -> None:
        self.pool = BlockPool(num_blocks, self._forget, rules)
        self.block_size = block_size
        self.queries = 0
        self.hits = 0
        self._base = base.encode()
        self._kv_dtype = kv_dtype.encode()
        self._by_key: dict[bytes, int] = {}
        self._entries: dict[int, _Entry] = {}

    def root(self, adapter: str | None, namespace: str) -> bytes:
        """The start of every chain of one namespace, adapter and base model."""
        digest = hashlib.sha256()
        for part in (VERSION, self._base, self._kv_dtype, (adapter or "").encode(), namespace.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def match(self, root: bytes, tokens: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Blocks and keys of the longest cached prefix of ``tokens``, never all of them.

        The last token is always left over: a step has to compute something to sample from. The blocks are not held
        yet; the caller shares them before it allocates.
        """
        blocks: list[int] = []
        keys: list[bytes] = []
        parent = root
        for end in range(self.block_size, len(tokens), self.block_size):
            content = packed(tokens[end - self.block_size : end])
            key = hashlib.sha256(parent + content).digest()
            block = self._by_key.get(key)
            if block is None:
                break
            entry = self._entries[block]
            if entry.parent != parent or entry.tokens != content:
                break  # a collision of the hash: never trusted
            blocks.append(block)
            keys.append(key)
            parent = key
        return blocks, keys

    def count(self, looked_up: int, found: int) -> None:
        """Tokens of one admission, for the metrics."""
        self.queries += looked_up
        self.hits += found

    def insert(self, block: int, parent: bytes, tokens: Sequence[int]) -> bytes:
        """The full ``block`` now holds the KV of ``tokens`` after ``parent``; returns its key.

        If another block already holds the same, that one stays the cached one and this one will be freed.
        """
        content = packed(tokens)
        key = hashlib.sha256(parent + content).digest()
        if key not in self._by_key:
            self._by_key[key] = block
            self._entries[block] = _Entry(key, parent, content)
        return key

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one sequence's blocks; the deepest are evicted first, so that prefixes last longest."""
        for block in reversed(blocks):
            self.pool.release(block, keep=block in self._entries)

    def check(self) -> None:
        """Raises ``AssertionError`` unless blocks, keys and accounts agree."""
        self.pool.check()
        assert len(self._by_key) == len(self._entries) >= self.pool.cached
        assert all(self._by_key[entry.key] == block for block, entry in self._entries.items())

    def _forget(self, block: int) -> None:
        entry = self._entries.pop(block)
        del self._by_key[entry.key]
