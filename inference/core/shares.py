"""How much of the cache each namespace holds, and whose cached block goes next."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShareRules:
    """How namespaces divide the cache between them.

    :param reserved: blocks that all floors together protect. A namespace's floor is its equal part of them.
    :param cap: most cached blocks of one namespace; ``None``: as many as there are.
    :param idle_seconds: a namespace that was not used for so long loses its floor: nobody's blocks stay for ever.
    """

    reserved: int = 0
    cap: int | None = None
    idle_seconds: float = 600.0


@dataclass(slots=True, eq=False)
class _Account:
    """:ivar held: blocks in use and cached. :ivar cached: those that nobody uses now, least recently used first."""

    held: int = 0
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    used_at: float = 0.0
    stale: bool = False


class Shares:
    """Accounts of the namespaces that hold blocks.

    A block is taken, in this order, from

    1. a namespace that nobody used for :attr:`ShareRules.idle_seconds`;
    2. the taker itself, if it holds its equal share of all blocks or more;
    3. the namespace with the most cached blocks, down to its floor;
    4. the taker itself.

    So one namespace alone may fill the cache, two that both need it come to halves, and a flood costs others only what
    lies above their floors. Every step is O(1); only :meth:`within_reach` may look at all accounts.
    """

    def __init__(self, total: int, rules: ShareRules) -> None:
        self.total = total
        self.rules = rules
        self.cached = 0
        self._now = 0.0
        self._active: OrderedDict[str, _Account] = OrderedDict()  # least recently used first
        self._stale: OrderedDict[str, _Account] = OrderedDict()
        self._by_size: defaultdict[int, dict[str, None]] = defaultdict(dict)  # active ones, by cached blocks
        self._largest = 0

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
            self._move(namespace, len(account.cached), 0)
            account.stale = True
            self._stale[namespace] = self._active.pop(namespace)

    def held(self, namespace: str) -> int:
        """Blocks in use by the namespace or cached for it."""
        account = self._find(namespace)
        return account.held if account else 0

    def cached_of(self, namespace: str) -> int:
        account = self._find(namespace)
        return len(account.cached) if account else 0

    def floor(self, taker: str) -> int:
        """Cached blocks that ``taker`` has to leave to each other namespace in use."""
        return self.rules.reserved // self._sharers(taker)

    def within_reach(self, taker: str, at_least: int) -> bool:
        """Whether ``at_least`` cached blocks may go to ``taker``."""
        if self.cached - self.rules.reserved >= at_least:
            return True  # the floors together are never more
        floor = self.floor(taker)
        kept = sum(min(len(account.cached), floor) for name, account in self._active.items() if name != taker)
        return self.cached - kept >= at_least

    def victim(self, taker: str, floor: int) -> int | None:
        """The cached block that goes to ``taker`` now, taken off its account; ``None``: none may."""
        if self._stale:
            namespace = next(iter(self._stale))
        elif self.cached_of(taker) and self.held(taker) >= self.total // self._sharers(taker):
            namespace = taker
        elif self._largest > floor:
            namespace = next(iter(self._by_size[self._largest]))
        elif self.cached_of(taker):
            namespace = taker
        else:
            return None
        return self._pop(namespace)

    def hold(self, namespace: str) -> None:
        """One block more in use."""
        self._touch(namespace).held += 1

    def drop(self, namespace: str) -> None:
        """One block in use fewer, its content given up."""
        self._touch(namespace).held -= 1
        self._forget_if_empty(namespace)

    def keep(self, namespace: str, block: int) -> int | None:
        """A block in use becomes cached; the namespace's oldest one instead, returned, if it is at its cap."""
        account = self._touch(namespace)
        account.cached[block] = None
        self.cached += 1
        self._move(namespace, len(account.cached) - 1, len(account.cached))
        cap = self.rules.cap
        return self._pop(namespace) if cap is not None and len(account.cached) > cap else None

    def reuse(self, namespace: str, block: int) -> None:
        """A cached block comes into use."""
        account = self._touch(namespace)
        del account.cached[block]
        self.cached -= 1
        self._move(namespace, len(account.cached) + 1, len(account.cached))

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
        sizes = {name: len(account.cached) for name, account in self._active.items() if account.cached}
        assert sizes == {name: size for size, names in self._by_size.items() for name in names}
        assert self._largest == max(sizes.values(), default=0)

    def _find(self, namespace: str) -> _Account | None:
        return self._active.get(namespace) or self._stale.get(namespace)

    def _sharers(self, taker: str) -> int:
        return len(self._active) + (taker not in self._active)

    def _touch(self, namespace: str) -> _Account:
        account = self._active.get(namespace)
        if account is None:
            account = self._stale.pop(namespace) if namespace in self._stale else _Account()
            account.stale = False
            self._active[namespace] = account
            self._move(namespace, 0, len(account.cached))
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
            self._move(namespace, len(account.cached) + 1, len(account.cached))
        self._forget_if_empty(namespace)
        return block

    def _forget_if_empty(self, namespace: str) -> None:
        accounts = self._active if namespace in self._active else self._stale
        if not accounts[namespace].held:
            del accounts[namespace]

    def _move(self, namespace: str, before: int, after: int) -> None:
        """Note a new number of cached blocks. It moves by one, but when an account falls asleep or wakes."""
        if before:
            del self._by_size[before][namespace]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size[after][namespace] = None
            self._largest = max(self._largest, after)
        while self._largest and self._largest not in self._by_size:
            self._largest -= 1
