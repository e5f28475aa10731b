"""Physical KV blocks: who holds them, and which may be taken."""

from __future__ import annotations

from collections.abc import Callable

from inference.core.shares import ShareRules, Shares

NOBODY = ""
"""Owner of what belongs to no tenant; a grant's namespace is never empty."""


class BlockPool:
    """Blocks ``0 … total-1``, each in exactly one state.

    - in use: held by one or more sequences (shared prefixes are counted);
    - cached: held by nobody, content kept for reuse until :class:`~inference.core.shares.Shares` gives it away;
    - free: no content, no owner.

    ``free + cached + in_use == total`` always; :meth:`check` verifies it.

    :param forget: called with a cached block whose content is about to be given up.
    """

    def __init__(self, total: int, forget: Callable[[int], None], rules: ShareRules | None = None) -> None:
        self.total = total
        self.shares = Shares(total, rules or ShareRules())
        self._forget = forget
        self._holders = [0] * total
        self._owners: dict[int, str] = {}
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return self.shares.cached

    @property
    def in_use(self) -> int:
        return self.total - self.free - self.cached

    @property
    def largest_request(self) -> int:
        """Blocks that one request can always have once nothing else runs, whatever the floors protect."""
        return self.total - self.shares.rules.reserved

    def fits(self, owner: str, count: int, weight: int = 1) -> bool:
        """Whether :meth:`allocate` can give ``owner`` that many now."""
        return count <= self.free or self.shares.within_reach(owner, count - self.free, weight)

    def allocate(self, owner: str, count: int = 1, weight: int = 1) -> list[int]:
        """Blocks without content, held once. The caller has asked :meth:`fits`; raises ``IndexError``.

        :param weight: the owner's part of the floors and shares, against others'.
        """
        rivals = self.shares.rivals(owner, weight)  # once: floors must not rise while others lose their last block
        blocks = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict(owner, weight, rivals)
            self._holders[block] = 1
            self._owners[block] = owner
            self.shares.hold(owner, weight)
            blocks.append(block)
        return blocks

    def give(self, block: int, owner: str) -> None:
        """A block in use goes on another's account, of weight 1."""
        self.shares.drop(self._owners[block])
        self._owners[block] = owner
        self.shares.hold(owner, 1)

    def share(self, block: int) -> None:
        """One more holder of a block that is cached or in use."""
        if self._holders[block] == 0:
            self.shares.reuse(self._owners[block], block)
        self._holders[block] += 1

    def release(self, block: int, *, keep: bool) -> None:
        """One holder fewer; the last one leaves the block cached if ``keep``, else free."""
        self._holders[block] -= 1
        if self._holders[block] > 0:
            return
        if keep:
            over_cap = self.shares.keep(self._owners[block], block)
            if over_cap is not None:
                self._forget(over_cap)
                self._set_free(over_cap)
        else:
            self.shares.drop(self._owners[block])
            self._set_free(block)

    def check(self) -> None:
        """Raises ``AssertionError`` unless every block is in exactly one state and on its owner's account."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice free"
        assert free.isdisjoint(self._owners), "a free block has an owner"
        assert len(free) + len(self._owners) == self.total, "a block leaked"
        assert all(holders >= 0 for holders in self._holders), "a block was released more often than taken"
        cached = {block for block in self._owners if self._holders[block] == 0}
        self.shares.check(self._owners, cached)
        assert self.free + self.cached + self.in_use == self.total

    def _evict(self, owner: str, weight: int, rivals: int) -> int:
        block = self.shares.victim(owner, weight, rivals)
        if block is None:
            raise IndexError("no block is available")
        self._forget(block)
        del self._owners[block]
        return block

    def _set_free(self, block: int) -> None:
        del self._owners[block]
        self._free.append(block)
