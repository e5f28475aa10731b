"""Physical KV blocks: who holds them, and which may be taken."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class BlockPool:
    """Blocks ``0 … total-1``, each in exactly one state.

    - in use: held by one or more sequences (shared prefixes are counted);
    - cached: held by nobody, content kept for reuse, taken last and oldest first;
    - free: no content.

    ``free + cached + in_use == total`` always; :meth:`check` verifies it.

    :param forget: called with a cached block whose content is about to be given up.
    """

    def __init__(self, total: int, forget: Callable[[int], None]) -> None:
        self.total = total
        self._forget = forget
        self._holders = [0] * total
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that :meth:`allocate` can still hand out."""
        return len(self._free) + len(self._cached)

    @property
    def in_use(self) -> int:
        return self.total - self.available

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds the block, so that sharing it takes one from :attr:`available`."""
        return self._holders[block] == 0

    def allocate(self) -> int:
        """A block without content, held once. The caller has checked :attr:`available`; raises ``IndexError``."""
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        else:
            raise IndexError("no block is available")
        self._holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder of a block that is cached or in use."""
        if self._holders[block] == 0:
            del self._cached[block]
        self._holders[block] += 1

    def release(self, block: int, *, keep: bool) -> None:
        """One holder fewer; the last one leaves the block cached if ``keep``, else free."""
        self._holders[block] -= 1
        if self._holders[block] == 0:
            if keep:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check(self) -> None:
        """Raises ``AssertionError`` unless every block is in exactly one state."""
        idle = set(self._free) | set(self._cached)
        assert len(idle) == len(self._free) + len(self._cached), "a block is both free and cached, or twice free"
        for block, holders in enumerate(self._holders):
            assert holders >= 0, f"block {block} was released more often than taken"
            assert (holders == 0) == (block in idle), f"block {block} leaked"
