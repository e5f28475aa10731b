"""What is guessed, and how often."""

from __future__ import annotations

import random

import pytest

from inference.core.lookup import MATCH, Lookup


def longest_match(tokens: list[int], most: int) -> list[int]:
    """The specification: the latest of the longest earlier matches, and what followed it, going round at the end."""
    best, place = MATCH - 1, None
    for end in range(MATCH, len(tokens)):
        length = 0
        while length < min(16, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= MATCH and length >= best:
            best, place = length, end
    if place is None:
        return []
    period = tokens[place:]
    return [period[index % len(period)] for index in range(most)]


@pytest.mark.parametrize("seed", range(50))
def test_it_guesses_what_followed_the_longest_match(seed: int) -> None:
    rng = random.Random(seed)
    lookup, tokens = Lookup(5), [rng.randrange(12) for _ in range(rng.randrange(1, 30))]
    for _ in range(60):  # few pairs repeat more often than the index looks back
        assert lookup.guess(tokens, 5) == longest_match(tokens, 5)
        lookup.learn(5, 5)
        tokens.append(rng.randrange(12))


def test_a_loop_goes_round() -> None:
    assert Lookup(6).guess([9, 1, 2, 1, 2], 6) == [1, 2, 1, 2, 1, 2]
    assert Lookup(6).guess([7, 7, 7], 4) == [7, 7, 7, 7]


def test_nothing_is_guessed_where_nothing_repeats_or_nothing_is_wanted() -> None:
    assert Lookup(4).guess([1], 4) == []
    assert Lookup(4).guess([1, 2, 3, 4], 4) == []
    assert Lookup(4).guess([1, 2, 1, 2], 0) == []
    assert Lookup(4).guess([1, 2, 1, 2], -1) == []


def test_luck_decides_how_many() -> None:
    lookup, loop = Lookup(8), [1, 2, 3] * 4
    assert len(lookup.guess(loop, 8)) == 8
    lookup.learn(8, 0)
    assert len(lookup.guess(loop, 8)) == 4
    lookup.learn(4, 0)
    assert [len(lookup.guess(loop, 8)) for _ in range(3)] == [0, 0, 2]
    lookup.learn(2, 2)
    assert len(lookup.guess(loop, 8)) == 4
    lookup.learn(4, 4)
    assert len(lookup.guess(loop, 8)) == 8


def test_a_long_prompt_is_indexed_in_parts_and_then_found() -> None:
    prompt = [100 + number for number in range(10_000)]
    lookup, tokens = Lookup(3), [*prompt, 9_000, 9_001]
    found = [lookup.guess(tokens, 3) for _ in range(4)]
    assert found[0] == []
    assert found[-1] == [9_002, 9_003, 9_004]
