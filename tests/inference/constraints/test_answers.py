"""Constrained answers of a whole core over a real model, however improbable it finds them."""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from random import Random

import jsonschema
import pytest

from inference.prompt import PromptRenderer
from inference.protocol import Constraint
from tests.inference.constraints.core_thread import CoreThread
from tests.inference.constraints.random_schema import random_schema

PROMPT = [1, 60, 70, 80]
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "maximum": 99, "minimum": 0},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
FORMATS = jsonschema.FormatChecker(["date"])
FORMATS.checks("time")(  # of RFC 3339; jsonschema's own knows no zones
    lambda value: re.fullmatch(r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", value, re.IGNORECASE) is not None
)
FORMATS.checks("ipv4", raises=ValueError)(lambda value: bool(ipaddress.IPv4Address(value)))
FORMATS.checks("uuid", raises=ValueError)(lambda value: bool(uuid.UUID(value)))


@pytest.mark.parametrize("seed", range(4))
def test_every_finished_answer_conforms_to_its_random_schema(
    core: CoreThread, renderer: PromptRenderer, seed: int
) -> None:
    draw = Random(seed)
    schemas = {f"r{number}": random_schema(draw) for number in range(24)}
    for number, (name, schema) in enumerate(schemas.items()):
        constraint = Constraint("json_schema", json.dumps(schema, ensure_ascii=False))
        core.ask(name, PROMPT, constraint, temperature=1.5, seed=seed * 100 + number, max_tokens=400)
    answers = dict(zip(schemas, core.wait(*schemas, seconds=120), strict=True))
    finished = 0
    for name, answer in answers.items():
        assert answer.error is None, (schemas[name], answer.error)
        if answer.finish == "stop":
            finished += 1
            value = json.loads(renderer.decode(answer.tokens))
            jsonschema.Draft202012Validator(schemas[name], format_checker=FORMATS).validate(value)
    assert finished >= len(schemas) * 2 // 3, "too few answers came to an end for the test to mean much"


def test_a_json_object_is_one(core: CoreThread, renderer: PromptRenderer) -> None:
    names = [
        core.ask(f"r{seed}", PROMPT, Constraint("json_object"), temperature=1.2, seed=seed, max_tokens=300)
        for seed in range(12)
    ]
    ended = [answer for answer in core.wait(*names) if answer.finish == "stop"]
    assert ended
    assert all(isinstance(json.loads(renderer.decode(answer.tokens)), dict) for answer in ended)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint("regex", r"\d{3}-[a-f]+x"), r"\d{3}-[a-f]+x"),
        (
            Constraint("choice", '["yes", "no", "it \\"depends\\"\\n", "naïve 東京"]'),
            '(yes|no|it "depends"\n|naïve 東京)',
        ),
        (
            Constraint("grammar", 'start: pair ("," pair)*\npair: WORD "=" WORD\nWORD: /[a-z]{1,3}/'),
            r"([a-z]+=[a-z]+,?)+",
        ),
    ],
)
def test_regex_choice_and_grammar(
    core: CoreThread, renderer: PromptRenderer, constraint: Constraint, pattern: str
) -> None:
    names = [core.ask(f"r{seed}", PROMPT, constraint, temperature=1.5, seed=seed, max_tokens=100) for seed in range(8)]
    ended = [answer for answer in core.wait(*names) if answer.finish == "stop"]
    assert ended
    for answer in ended:
        assert re.fullmatch(pattern, renderer.decode(answer.tokens))


def test_a_seeded_answer_is_the_same_alone_and_in_a_batch(core: CoreThread) -> None:
    def ask(name: str) -> str:
        return core.ask(name, PROMPT, Constraint("json_schema", PERSON), temperature=1.3, seed=42, max_tokens=60)

    (alone,) = core.wait(ask("alone"))
    others = [
        core.ask(f"o{seed}", PROMPT[: 1 + seed % 3], Constraint("json_object"), temperature=1.0, seed=seed)
        for seed in range(6)
    ]
    free = [core.ask(f"f{seed}", PROMPT, temperature=1.0, seed=seed) for seed in range(6)]
    crowded, *_ = core.wait(ask("crowded"), *others, *free)
    assert crowded.tokens == alone.tokens
    assert crowded.finish == alone.finish == "stop"


def test_one_that_is_cut_says_so(core: CoreThread, renderer: PromptRenderer) -> None:
    (answer,) = core.wait(core.ask("r", PROMPT, Constraint("json_schema", PERSON), max_tokens=3))
    assert (answer.finish, len(answer.tokens)) == ("length", 3)
    assert renderer.decode(answer.tokens).startswith("{")


def test_the_language_decides_about_the_end(core: CoreThread, renderer: PromptRenderer) -> None:
    """``min_tokens``, ``ignore_eos`` and a bias cannot go on where nothing may follow, nor end where something must."""
    choice = Constraint("choice", '["abc"]')
    names = [
        core.ask("min", PROMPT, choice, min_tokens=30),
        core.ask("ignore", PROMPT, choice, ignore_eos=True),
        core.ask("bias", PROMPT, choice, logit_bias={2: 100.0, 65: -100.0}),
    ]
    for answer in core.wait(*names):
        assert (renderer.decode(answer.tokens), answer.finish, answer.tokens[-1]) == ("abc", "stop", 2)
    # Where the language may end and may go on, min_tokens makes it go on.
    short, long = core.wait(
        core.ask("short", PROMPT, Constraint("regex", "[ab]+"), logit_bias={2: 100.0}),
        core.ask("long", PROMPT, Constraint("regex", "[ab]+"), logit_bias={2: 100.0}, min_tokens=10),
    )
    assert (len(short.tokens), short.finish) == (2, "stop")
    assert (len(long.tokens), long.finish) == (11, "stop")


def test_stop_tokens_end_it_early(core: CoreThread, renderer: PromptRenderer) -> None:
    (free,) = core.wait(core.ask("free", PROMPT, Constraint("regex", "[a-c]{20}")))
    stop = free.tokens[3]
    (cut,) = core.wait(core.ask("cut", PROMPT, Constraint("regex", "[a-c]{20}"), stop_token_ids=(stop,)))
    assert (cut.tokens, cut.finish) == (free.tokens[: free.tokens.index(stop) + 1], "stop")


def test_an_abort_at_any_point_leaves_nothing(core: CoreThread) -> None:
    for number in range(30):
        core.ask(f"r{number}", PROMPT, Constraint("json_schema", PERSON), temperature=1.0, max_tokens=100)
        if number % 3:
            core.read(5)
        core.abort(f"r{number}")
    core.wait(core.ask("last", PROMPT, max_tokens=2))  # and the core checks itself when it is closed


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint("json_schema", '{"type": "object", "maxLenght": 3}', "f.schema"), "maxLenght"),
        (Constraint("json_schema", '{"type": "strin"}', "f.schema"), "strin"),
        (Constraint("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "f.schema"), "nsatisfiable"),
        (Constraint("regex", "(a", "f.regex"), "regex"),
        (Constraint("regex", "(?=a)b", "f.regex"), "look"),
        (Constraint("grammar", "start: (", "f.grammar"), "xpected"),
        (Constraint("choice", "[]", "f.choice"), "f.choice"),
        (Constraint("regex", "x" * 200_000, "f.regex"), "131072"),
    ],
)
def test_a_bad_constraint_fails_its_request_alone(core: CoreThread, constraint: Constraint, words: str) -> None:
    beside = core.ask("beside", PROMPT, Constraint("json_object"), max_tokens=20)
    bad, good = core.wait(core.ask("bad", PROMPT, constraint), beside)
    assert bad.error is not None
    assert not bad.tokens
    name, message, param = bad.error
    assert (name, param) == ("InvalidRequest", constraint.field)
    assert words in message
    assert len(message) < 400
    assert good.finish is not None
