"""How much of the cache each namespace holds, and whose cached block goes next."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShareRules:
    """How namespaces divide the cache between them.

    :param reserved: blocks that all floors together protect. A namespace's floor is its part of them by weight.
    :param cap: most cached blocks of one namespace; ``None``: as many as there are.
    :param idle_seconds: a namespace that was not used for so long loses its floor: nobody's blocks stay for ever.
    """

    reserved: int = 0
    cap: int | None = None
    idle_seconds: float = 600.0


@dataclass(slots=True, eq=False)
class _Account:
    """:ivar held: blocks in use and cached. :ivar cached: those that nobody uses now, least recently used first."""

    weight: int = 1
    held: int = 0
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    used_at: float = 0.0
    stale: bool = False


class Shares:
    """Accounts of the namespaces that hold blocks.

    A block is taken, in this order, from

    1. a namespace that nobody used for :attr:`ShareRules.idle_seconds`;
    2. the taker itself, if it holds its share of all blocks or more;
    3. the namespace with the most cached blocks for its weight, down to its floor;
    4. the taker itself.

    Shares and floors go by weight. So one namespace alone may fill the cache, two of equal weight that both need it
    come to halves, and a flood costs others only what lies above their floors. Every step is O(log accounts); only
    :meth:`within_reach` may look at all of them.
    """

    def __init__(self, total: int, rules: ShareRules) -> None:
        self.total = total
        self.rules = rules
        self.cached = 0
        self._now = 0.0
        self._active: OrderedDict[str, _Account] = OrderedDict()  # least recently used first
        self._stale: OrderedDict[str, _Account] = OrderedDict()
        self._weight = 0  # of the active ones together
        # Active ones by cached blocks for their weight, largest first; an entry that is no longer true is skipped.
        self._by_size: list[tuple[float, int, str, int]] = []
        self._pushes = 0

    def tick(self, now: float) -> None:
        """Time passes; only between a step's decisions, so that what was promised within one stays true."""
        self._now = now
        while self._active:
            namespace, account = next(iter(self._active.items()))
            if account.used_at > now - self.rules.idle_seconds:
                return
            if account.held > len(account.cached):  # a request of it is running
                self._touch(namespace)
                continue
            self._weight -= account.weight
            account.stale = True
            self._stale[namespace] = self._active.pop(namespace)

    def held(self, namespace: str) -> int:
        """Blocks in use by the namespace or cached for it."""
        account = self._find(namespace)
        return account.held if account else 0

    def cached_of(self, namespace: str) -> int:
        account = self._find(namespace)
        return len(account.cached) if account else 0

    def rivals(self, taker: str, weight: int = 1) -> int:
        """The weight of all namespaces in use, the taker's included."""
        account = self._active.get(taker)
        return self._weight + weight - (account.weight if account else 0)

    def floor(self, rivals: int, weight: int = 1) -> int:
        """Cached blocks of a namespace of ``weight`` that others have to leave to it."""
        return self.rules.reserved * weight // rivals

    def within_reach(self, taker: str, at_least: int, weight: int = 1) -> bool:
        """Whether ``at_least`` cached blocks may go to ``taker``."""
        if self.cached - self.rules.reserved >= at_least:
            return True  # the floors together are never more
        rivals = self.rivals(taker, weight)
        kept = sum(
            min(len(account.cached), self.floor(rivals, account.weight))
            for name, account in self._active.items()
            if name != taker
        )
        return self.cached - kept >= at_least

    def victim(self, taker: str, weight: int, rivals: int) -> int | None:
        """The cached block that goes to ``taker`` now, taken off its account; ``None``: none may."""
        if self._stale:
            return self._pop(next(iter(self._stale)))
        own = self.cached_of(taker)
        if own and self.held(taker) >= self.total * weight // self.rivals(taker, weight):
            return self._pop(taker)
        largest = self._largest()
        if largest is not None:
            account = self._active[largest]
            if len(account.cached) > self.floor(rivals, account.weight):
                return self._pop(largest)
        return self._pop(taker) if own else None

    def hold(self, namespace: str, weight: int = 1) -> None:
        """One block more in use."""
        account = self._touch(namespace)
        account.held += 1
        if account.weight != weight:
            self._weight += weight - account.weight
            account.weight = weight
            self._note(namespace)

    def drop(self, namespace: str) -> None:
        """One block in use fewer, its content given up."""
        self._touch(namespace).held -= 1
        self._forget_if_empty(namespace)

    def keep(self, namespace: str, block: int) -> int | None:
        """A block in use becomes cached; the namespace's oldest one instead, returned, if it is at its cap."""
        account = self._touch(namespace)
        account.cached[block] = None
        self.cached += 1
        self._note(namespace)
        cap = self.rules.cap
        return self._pop(namespace) if cap is not None and len(account.cached) > cap else None

    def reuse(self, namespace: str, block: int) -> None:
        """A cached block comes into use."""
        account = self._touch(namespace)
        del account.cached[block]
        self.cached -= 1
        self._note(namespace)

    def check(self, owners: dict[int, str], cached: set[int]) -> None:
        """Raises ``AssertionError`` unless the accounts agree with who owns which block.

        :param owners: owner of every block that is in use or cached.
        """
        accounts = {**self._active, **self._stale}
        assert len(accounts) == len(self._active) + len(self._stale)
        for namespace, account in accounts.items():
            own = {block for block, owner in owners.items() if owner == namespace}
            assert account.held == len(own) > 0, f"the account of {namespace} is off"
            assert set(account.cached) == own & cached, f"the cached blocks of {namespace} are off"
            assert account.stale == (namespace in self._stale)
        assert set(owners.values()) == set(accounts), "blocks without an account"
        assert self.cached == len(cached)
        assert self._weight == sum(account.weight for account in self._active.values()), "the weights are off"

    def _find(self, namespace: str) -> _Account | None:
        return self._active.get(namespace) or self._stale.get(namespace)

    def _touch(self, namespace: str) -> _Account:
        account = self._active.get(namespace)
        if account is None:
            account = self._stale.pop(namespace) if namespace in self._stale else _Account()
            account.stale = False
            self._active[namespace] = account
            self._weight += account.weight
            self._note(namespace)
        self._active.move_to_end(namespace)
        account.used_at = self._now
        return account

    def _pop(self, namespace: str) -> int:
        """The namespace's least recently used cached block."""
        account = self._find(namespace)
        assert account is not None
        block, _ = account.cached.popitem(last=False)
        account.held -= 1
        self.cached -= 1
        if not account.stale:
            self._note(namespace)
        self._forget_if_empty(namespace)
        return block

    def _forget_if_empty(self, namespace: str) -> None:
        account = self._active.get(namespace) or self._stale[namespace]
        if account.held:
            return
        if account.stale:
            del self._stale[namespace]
        else:
            del self._active[namespace]
            self._weight -= account.weight

    def _note(self, namespace: str) -> None:
        """The account's number of cached blocks, or its weight, is another now."""
        account = self._active[namespace]
        if account.cached:
            self._pushes += 1
            size = len(account.cached)
            heapq.heappush(self._by_size, (-size / account.weight, self._pushes, namespace, size))
        if len(self._by_size) > 4 * len(self._active) + 64:
            sizes = ((len(each.cached), each.weight, name) for name, each in self._active.items() if each.cached)
            self._by_size = [(-size / weight, self._pushes, name, size) for size, weight, name in sizes]
            heapq.heapify(self._by_size)

    def _largest(self) -> str | None:
        """The active namespace with the most cached blocks for its weight."""
        while self._by_size and not self._is_true(self._by_size[0]):
            heapq.heappop(self._by_size)
        return self._by_size[0][2] if self._by_size else None

    def _is_true(self, entry: tuple[float, int, str, int]) -> bool:
        ratio, _, namespace, size = entry
        account = self._active.get(namespace)
        return account is not None and len(account.cached) == size and ratio == -size / account.weight
