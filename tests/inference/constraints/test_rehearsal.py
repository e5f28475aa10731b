"""Hostile grammars cost a process of their own, for a bounded time, and no other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from llguidance import LLMatcher

from inference.constraints.checker import TOO_COMPLEX, WALL_SECONDS, Checker
from inference.constraints.grammar import grammar_of
from inference.constraints.matcher import refusal
from inference.constraints.vocabulary import Vocabulary
from inference.protocol import Constraint
from inference.response_format import MAX_SOURCE

FINE = Constraint("regex", "[a-z]+")


def _deep_references(count: int) -> Constraint:
    """Each names the next: compiled by recursion, it takes the stack of whoever does it."""
    names = {
        f"n{number}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/n{number + 1}"}}}
        for number in range(count)
    }
    return Constraint("json_schema", json.dumps({"$defs": {**names, f"n{count}": {}}, "$ref": "#/$defs/n0"}))


def _many_patterns(count: int) -> Constraint:
    """Their intersection is exponential, and llguidance's fuel does not count it."""
    parts = " & ".join(f"/.*[a-z]x{{{number}}}.*/" for number in range(count))
    return Constraint("grammar", f"start: A\nA: /.*a.{{10}}b.*/ & {parts}")


@pytest.fixture
def checker(model: Path, vocabulary: Vocabulary) -> Iterator[Checker]:
    checker = Checker(model, vocabulary)
    yield checker
    checker.close()


def test_what_is_fine_and_what_is_wrong(checker: Checker) -> None:
    assert checker.check(grammar_of(FINE)) is None
    error = checker.check(grammar_of(Constraint("regex", "(a")))
    assert error is not None
    assert "regex" in error
    assert checker.check(grammar_of(FINE)) is None


EMPTY = [
    Constraint("json_schema", '{"type": "string", "pattern": "\\u0000"}', "f"),
    Constraint("json_schema", '{"$ref": "#"}', "f"),
    Constraint("regex", "[^\\s\\S]", "f"),
]


@pytest.mark.parametrize("constraint", EMPTY, ids=lambda constraint: constraint.source)
def test_an_empty_language_is_refused_in_a_sentence(checker: Checker, constraint: Constraint) -> None:
    error = checker.check(grammar_of(constraint))
    assert error is not None
    assert refusal(constraint, error) == ("f: no text conforms to it", "f")


BOMBS = {
    "time and memory": grammar_of(_many_patterns(30)),
    # Longer than a client's may be: what a client can send fits on the stack.
    "stack": LLMatcher.grammar_from_json_schema(_deep_references(20_000).source),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_ends_only_the_rehearsal(checker: Checker, bomb: str) -> None:
    began = time.monotonic()
    assert checker.check(BOMBS[bomb]) == TOO_COMPLEX
    assert time.monotonic() - began < WALL_SECONDS + 10
    assert checker.check(grammar_of(FINE)) is None, "the next one has a new process"


def test_the_deepest_that_a_client_can_send_fits_on_the_stack(checker: Checker) -> None:
    count = MAX_SOURCE // 79
    constraint = _deep_references(count)
    assert len(constraint.source) > MAX_SOURCE * 0.9
    assert checker.check(grammar_of(constraint)) is None


def test_what_is_large_and_harmless_passes(checker: Checker) -> None:
    assert checker.check(grammar_of(_deep_references(200))) is None
    wide = {f"key {number}": {"type": "string", "maxLength": 50} for number in range(200)}
    schema = {"type": "object", "properties": wide, "required": list(wide)}
    assert checker.check(grammar_of(Constraint("json_schema", json.dumps(schema)))) is None
    many = Constraint("choice", json.dumps([f"value {number}" for number in range(1000)]))
    assert checker.check(grammar_of(many)) is None
