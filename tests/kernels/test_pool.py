"""A site's operands through many changes of what is loaded and what is active: held once, never mixed up."""

from __future__ import annotations

import random

import torch

from sgmv import Plan, SlotWeights, make_site, sgmv_naive
from sgmv.pool import Pool

SLICES = (12, 5)
IN = 9


def weights(seed: int, rank: int) -> SlotWeights:
    generator = torch.Generator().manual_seed(seed)
    return SlotWeights(
        tuple(torch.randn(rank, IN, generator=generator) for _ in SLICES),
        tuple(torch.randn(width, rank, generator=generator) for width in SLICES),
        (0.5, 2.0),
    )


def test_the_slots_of_a_batch_lie_at_the_front_and_joining_moves_no_other() -> None:
    pool = Pool(4, IN, SLICES, torch.float32)
    for slot in range(6):
        pool.add(slot, weights(slot, 3))
    assert pool.front((4, 5)) == (4, 5)
    assert pool.front((2, 4, 5)) == (4, 5, 2)
    assert pool.front((2, 5)) == (2, 5)
    assert pool.order[2] == 4, "the one that left stands next, for when it returns"
    assert pool.front((2, 4, 5, 99)) == (2, 5, 4)
    assert pool.a.shape == (3, 2 * 4, IN)


def test_any_sequence_of_loads_and_batches_equals_the_specification() -> None:
    chooser, site, held = random.Random(3), make_site(IN, SLICES), dict[int, SlotWeights]()
    for number in range(400):
        slot = chooser.randrange(12)
        if chooser.random() < 0.3:
            held[slot] = weights(number, chooser.choice((1, 4, 8, 12, 17)))
            site.set(slot, held[slot])
        elif chooser.random() < 0.2:
            held.pop(slot, None)
            site.clear(slot)
        slots = [chooser.randrange(-1, 12) for _ in range(chooser.choice((1, 7, 16)))]
        if chooser.random() < 0.5:
            ranks = {slot: rank for rank, slot in enumerate(site.order)}
            slots.sort(key=lambda slot: ranks.get(slot, -1))
        x = torch.randn(len(slots), IN)
        y, expected = torch.zeros(len(slots), sum(SLICES)), torch.zeros(len(slots), sum(SLICES))
        site.apply(y, x, Plan(slots))
        sgmv_naive(expected, x, slots, held, SLICES)
        torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)


def test_batches_of_every_kind_allocate_nothing_and_unloading_gives_back() -> None:
    chooser, site = random.Random(5), make_site(IN, SLICES)
    for slot in range(16):
        site.set(slot, weights(slot, 8))
    full = site.num_bytes
    own = 8 * (len(SLICES) * IN + sum(SLICES)) * 4
    assert full == 16 * own, "each adapter is held once"
    for _ in range(200):
        slots = [chooser.randrange(16) for _ in range(chooser.randrange(1, 40))]
        site.apply(torch.zeros(len(slots), sum(SLICES)), torch.randn(len(slots), IN), Plan(slots))
    assert site.num_bytes == full
    for slot in range(15):
        site.clear(slot)
    assert site.num_bytes <= 4 * own
    site.clear(15)
    assert site.num_bytes == 0
