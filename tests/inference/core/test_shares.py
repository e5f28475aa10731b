"""How namespaces divide the cache: floors, caps, own blocks first."""

from __future__ import annotations

import random

import pytest

from inference.core.blocks import BlockPool
from inference.core.shares import ShareRules


class Cache:
    """A pool and the content it was asked to forget."""

    def __init__(self, total: int, rules: ShareRules) -> None:
        self.forgotten: list[int] = []
        self.pool = BlockPool(total, self.forgotten.append, rules)

    def cache(self, owner: str, count: int) -> list[int]:
        """``count`` blocks computed by the owner one after another, and left cached."""
        blocks = []
        for _ in range(count):
            (block,) = self.pool.allocate(owner)
            self.pool.release(block, keep=True)
            blocks.append(block)
        return blocks

    def of(self, owner: str) -> int:
        return self.pool.shares.cached_of(owner)


def test_one_alone_may_fill_the_cache() -> None:
    cache = Cache(16, ShareRules(reserved=8))
    cache.cache("a", 40)
    assert (cache.of("a"), cache.pool.free) == (16, 0)
    cache.pool.check()


def test_a_flood_costs_others_only_what_lies_above_their_floor() -> None:
    cache = Cache(16, ShareRules(reserved=8))
    mine = cache.cache("a", 16)
    held = cache.pool.allocate("b", 12)  # all at once, and running: more than its share
    assert cache.of("a") == 4 == cache.pool.shares.floor(cache.pool.shares.rivals("b"))
    assert not cache.pool.fits("b", 1)
    with pytest.raises(IndexError):
        cache.pool.allocate("b")
    assert cache.forgotten == mine[:12], "not the oldest first"
    for block in held:
        cache.pool.release(block, keep=True)
    cache.cache("b", 1000)
    assert cache.of("a") == 4
    cache.pool.check()


def test_two_who_both_need_it_come_to_halves() -> None:
    cache = Cache(16, ShareRules(reserved=4))
    cache.cache("a", 16)
    for _ in range(50):
        cache.cache("b", 1)
        cache.cache("a", 1)
    assert (cache.of("a"), cache.of("b")) == (8, 8)
    cache.cache("b", 100)  # over its share: its own first
    assert (cache.of("a"), cache.of("b")) == (8, 8)


def test_a_newcomer_takes_from_the_one_who_holds_most() -> None:
    cache = Cache(20, ShareRules(reserved=6))
    cache.cache("small", 3)
    cache.cache("large", 17)
    cache.cache("new", 5)
    assert (cache.of("small"), cache.of("large"), cache.of("new")) == (3, 12, 5)


def test_nobody_fills_more_than_the_cap() -> None:
    cache = Cache(16, ShareRules(cap=5))
    first = cache.cache("a", 5)
    cache.cache("a", 2)
    assert (cache.of("a"), cache.pool.free) == (5, 11)
    assert cache.forgotten == first[:2]
    running = cache.pool.allocate("a", 11)  # the cap is on what is kept, not on what runs
    assert cache.of("a") == 5
    for block in running:
        cache.pool.release(block, keep=True)
    assert (cache.of("a"), cache.pool.free) == (5, 11)
    cache.pool.check()


def test_who_is_gone_loses_the_floor_and_who_comes_back_has_it_again() -> None:
    cache = Cache(16, ShareRules(reserved=8, idle_seconds=60))
    cache.cache("gone", 8)
    (running,) = cache.pool.allocate("running")
    cache.pool.shares.tick(30)
    kept = cache.cache("back", 1)
    cache.pool.shares.tick(80)  # gone: 80 s; back: 50 s
    cache.pool.check()
    assert cache.pool.fits("b", 14)
    cache.cache("b", 20)
    assert (cache.of("gone"), cache.of("back")) == (0, 1)
    cache.pool.shares.tick(200)
    cache.pool.share(kept[0])
    cache.pool.release(kept[0], keep=True)
    cache.cache("c", 40)
    assert cache.of("back") == 1
    cache.pool.release(running, keep=True)
    cache.pool.check()


def test_many_dead_tenants_do_not_thin_out_the_floor_of_the_living() -> None:
    cache = Cache(64, ShareRules(reserved=16, idle_seconds=60))
    for number in range(64):
        cache.cache(f"dead{number}", 1)
    cache.pool.shares.tick(100)
    cache.cache("a", 8)
    assert cache.pool.shares.floor(cache.pool.shares.rivals("b")) == 8
    cache.pool.allocate("b", 56)
    assert cache.of("a") == 8
    assert not cache.pool.fits("b", 1)
    cache.pool.check()


@pytest.mark.parametrize("seed", range(20))
def test_what_fits_can_be_had_and_no_floor_is_touched(seed: int) -> None:
    rng = random.Random(seed)
    total = rng.choice([8, 17, 40])
    rules = ShareRules(rng.randrange(total), rng.choice([None, 3, total // 2]), idle_seconds=20)
    cache = Cache(total, rules)
    held: list[int] = []
    names = "abcdefghij"[: rng.choice([2, 3, 10])]
    for now in range(1500):
        cache.pool.shares.tick(now)
        owner, wanted = rng.choice(names[: rng.randrange(1, len(names) + 1)]), rng.randrange(1, 6)
        before = {name: cache.of(name) for name in names if name != owner}
        floor, awake = cache.pool.shares.floor(cache.pool.shares.rivals(owner)), set(cache.pool.shares._active)
        others = sum(max(0, count - floor) if name in awake else count for name, count in before.items())
        reachable = cache.pool.free + cache.of(owner) + others
        assert cache.pool.fits(owner, wanted) == (wanted <= reachable)
        if wanted <= reachable:
            held += cache.pool.allocate(owner, wanted)
        else:
            assert held or wanted > cache.pool.largest_request, "one alone did not get what it always can have"
        for name, count in before.items():
            assert cache.of(name) >= min(count, floor) or name not in awake
        rng.shuffle(held)
        for _ in range(rng.randrange(len(held) + 1)):
            block = held.pop()
            cache.pool.release(block, keep=rng.random() < 0.8)
        cache.pool.check()
