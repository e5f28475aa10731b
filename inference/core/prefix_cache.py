"""Which blocks already hold the KV of a prefix, per isolation domain.

The key of a block is a chain of hashes::

    root  = H(version ‖ base fingerprint ‖ KV dtype ‖ adapter digest ‖ namespace)      every part length-prefixed
    block = H(parent ‖ token ids)

Two requests can share a block only if they start from the same root. The namespace comes from the signed grant, so a
hit across tenants cannot be expressed. The owner of a block is the namespace it was computed for.

Blocks wholly inside a prefix that the operator declared public start from the public namespace's root, whoever computes
them. The tenant's own chain runs beside it over the same tokens and takes over at the first block that is not declared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inference.core.blocks import BlockPool
from inference.core.public_prefixes import PUBLIC, PublicPrefixes
from inference.core.shares import ShareRules

VERSION = b"loraplex-kv-1"


@dataclass(frozen=True, slots=True)
class _Entry:
    key: bytes
    parent: bytes
    tokens: bytes


class Chain(NamedTuple):
    """How far a sequence's blocks are hashed.

    :param private: the tenant's own chain; ``public``: the declared one, ``None`` once the sequence has left it.
    :param length: full blocks so far.
    """

    private: bytes
    public: bytes | None
    length: int = 0


class _Link(NamedTuple):
    """The next block's key, what it hangs on, and the chain after it."""

    key: bytes
    parent: bytes
    chain: Chain


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
        self.public = PublicPrefixes()
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

    def start(self, adapter: str | None, namespace: str) -> Chain:
        """The chain of a sequence of which nothing is computed."""
        return Chain(self.root(adapter, namespace), self.root(adapter, PUBLIC))

    def match(self, chain: Chain, tokens: Sequence[int]) -> tuple[list[int], Chain]:
        """Blocks of the longest cached prefix of ``tokens``, never all of them, and the chain after them.

        The last token is always left over: a step has to compute something to sample from. The blocks are not held
        yet; the caller shares them before it allocates.
        """
        blocks: list[int] = []
        for end in range(self.block_size, len(tokens), self.block_size):
            content = packed(tokens[end - self.block_size : end])
            link = self._link(chain, content)
            block = self._by_key.get(link.key)
            if block is None:
                break
            entry = self._entries[block]
            if entry.parent != link.parent or entry.tokens != content:
                break  # a collision of the hash: never trusted
            blocks.append(block)
            chain = link.chain
        return blocks, chain

    def count(self, looked_up: int, found: int) -> None:
        """Tokens of one admission, for the metrics."""
        self.queries += looked_up
        self.hits += found

    def insert(self, block: int, chain: Chain, tokens: Sequence[int]) -> Chain:
        """The full ``block`` now holds the KV of ``tokens`` after ``chain``; returns the chain with it.

        If another block already holds the same, that one stays the cached one and this one will be freed.
        """
        content = packed(tokens)
        key, parent, after = self._link(chain, content)
        if key not in self._by_key:
            self._by_key[key] = block
            self._entries[block] = _Entry(key, parent, content)
            if after.public is not None:
                self.pool.give(block, PUBLIC)
        return after

    def declare(self, name: str, adapter: str | None, tokens: Sequence[int]) -> None:
        """Make the full blocks of ``tokens`` public, until ``name`` is withdrawn from :attr:`public`.

        What tenants have cached of it already stays theirs. Raises :class:`InvalidRequest` if there are too many.
        """
        blocks: dict[bytes, bytes] = {}
        parent = self.root(adapter, PUBLIC)
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            content = packed(tokens[end - self.block_size : end])
            parent = hashlib.sha256(parent + content).digest()
            blocks[parent] = content
        self.public.declare(name, blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one sequence's blocks; the deepest are evicted first, so that prefixes last longest."""
        for block in reversed(blocks):
            self.pool.release(block, keep=block in self._entries)

    def check(self) -> None:
        """Raises ``AssertionError`` unless blocks, keys and accounts agree."""
        self.pool.check()
        assert len(self._by_key) == len(self._entries) >= self.pool.cached
        assert all(self._by_key[entry.key] == block for block, entry in self._entries.items())

    def _link(self, chain: Chain, content: bytes) -> _Link:
        private = hashlib.sha256(chain.private + content).digest()
        if chain.public is not None:
            key = hashlib.sha256(chain.public + content).digest()
            if self.public.holds(key, content):
                return _Link(key, chain.public, Chain(private, key, chain.length + 1))
        return _Link(private, chain.private, Chain(private, None, chain.length + 1))

    def _forget(self, block: int) -> None:
        entry = self._entries.pop(block)
        del self._by_key[entry.key]
