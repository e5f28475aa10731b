"""Prefixes that an operator has declared public: whoever computes them, all may reuse them."""

from __future__ import annotations

from collections import Counter

from inference.errors import InvalidRequest

PUBLIC = "\0public"
"""The namespace of declared prefixes; a grant's namespace is printable, so none can be this one."""

MAX_PREFIXES = 1024


class PublicPrefixes:
    """The keys of the blocks that lie wholly inside a declared prefix.

    A hit tells whoever may ask it that *somebody* used text that the operator has published, on a base or an adapter
    that the asker's own grant names. Nothing that a tenant wrote is in the key, so nothing of it can be told apart.
    """

    def __init__(self) -> None:
        self._prefixes: dict[str, dict[bytes, bytes]] = {}
        self._uses: Counter[bytes] = Counter()
        self._contents: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._prefixes)

    def declare(self, name: str, blocks: dict[bytes, bytes]) -> None:
        """:param blocks: key → content. Declaring a prefix again changes nothing."""
        if name in self._prefixes:
            return
        if len(self._prefixes) >= MAX_PREFIXES:
            raise InvalidRequest(f"There are {MAX_PREFIXES} public prefixes already; withdraw one")
        self._prefixes[name] = blocks
        self._uses.update(blocks.keys())
        self._contents.update(blocks)

    def withdraw(self, name: str) -> None:
        """Nobody finds the prefix from now on; raises :class:`InvalidRequest` if there is none of that name."""
        blocks = self._prefixes.pop(name, None)
        if blocks is None:
            raise InvalidRequest(f"There is no public prefix {name}", "id")
        for key in blocks:
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key], self._contents[key]

    def holds(self, key: bytes, content: bytes) -> bool:
        """Whether a block is declared; its content is compared, a hash is not trusted."""
        return self._contents.get(key) == content
