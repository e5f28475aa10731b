"""golden.json: read without trust, compared token by token."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import AdapterInvalid
from inference.golden import MAX_BYTES, Distance, Scores, default_prompts, distance, golden_of, parse_golden
from inference.prompt import PromptRenderer

GOOD: dict[str, Any] = {
    "base_fingerprint": "f" * 64,
    "made_by": "peft",
    "prompts": [
        {
            "token_ids": [1, 2, 3],
            "adapter": {"logprobs": [-1.5, -2], "following": [[7, -0.25], [8, -3]]},
            "base": {"logprobs": [-1.0, -2.5], "following": [[7, -0.5]]},
        }
    ],
}


def changed(path: list[Any], value: Any) -> bytes:
    """GOOD with one place replaced, or removed by ``...``."""
    document = copy.deepcopy(GOOD)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document).encode()


def test_a_good_one() -> None:
    golden = parse_golden(json.dumps(GOOD).encode())
    (prompt,) = golden.prompts
    assert (golden.base_fingerprint, prompt.token_ids) == ("f" * 64, (1, 2, 3))
    assert prompt.adapter == Scores((-1.5, -2.0), ((7, -0.25), (8, -3.0)))
    assert prompt.base is not None
    assert distance([prompt.adapter], [prompt.base]) == Distance(mean=(0.5 + 0.5 + 0.25 + 2.5) / 4, most=2.5)
    assert parse_golden(changed(["prompts", 0, "base"], ...)).prompts[0].base is None


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["prompts"], [], "prompts has to be a list of 1 to 16"),
        (["prompts"], GOOD["prompts"] * 17, "prompts has to be a list of 1 to 16"),
        (["surprise"], 1, "surprise is not known"),
        (["base_fingerprint"], 5, "base_fingerprint"),
        (["prompts", 0, "adapter"], ..., r"prompts\[0\].adapter is missing"),
        (["prompts", 0, "token_ids"], [1], "token_ids has to be a list of 2 to 512"),
        (["prompts", 0, "token_ids"], [1, 2, True], "no token id"),
        (["prompts", 0, "token_ids"], [1, 2, -3], "no token id"),
        (["prompts", 0, "token_ids"], [1, 2, 2**31], "no token id"),
        (["prompts", 0, "adapter", "logprobs"], [-1.0], "logprobs has to be a list of 2"),
        (["prompts", 0, "adapter", "logprobs"], [-1.0, 0.5], "no log-probability"),
        (["prompts", 0, "adapter", "logprobs"], [-1.0, None], "no log-probability"),
        (["prompts", 0, "adapter", "logprobs"], [-1.0, -1e300], "no log-probability"),
        (["prompts", 0, "adapter", "following"], [[1, -1.0]] * 11, "following has to be a list of 1 to 10"),
        (["prompts", 0, "adapter", "following"], [[1]], "following has to be a list of 2"),
    ],
)
def test_what_is_wrong_is_named(path: list[Any], value: Any, where: str) -> None:
    with pytest.raises(AdapterInvalid, match=where) as refused:
        parse_golden(changed(path, value))
    assert refused.value.field == "golden.json"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"prompts": [NaN]}',
        b"\xff",
        b"[" * 100_000,
        b" " * (MAX_BYTES + 1),
        b'{"a":1,"a":2}',
    ],
)
def test_no_json_object_of_acceptable_size(data: bytes) -> None:
    with pytest.raises(AdapterInvalid):
        parse_golden(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, *GOOD["prompts"][0]]), inner),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "x"]), _JSON))
def test_anything_else_is_refused_in_a_sentence(value: dict[str, Any]) -> None:
    with pytest.raises(AdapterInvalid):
        golden_of(value)


def test_an_unlisted_token_counts_as_the_least_likely_one() -> None:
    expected, found = Scores((), ((1, -0.5), (9, -1.0))), Scores((), ((1, -0.5), (2, -4.0)))
    assert distance([expected], [found]).most == 3.0


def test_numbers_that_overflowed() -> None:
    assert not Scores((-1.0, math.nan), ()).finite
    assert not Scores((), ((1, -math.inf),)).finite
    assert Scores((), ((1, -5.95), (2, -5.95))).flat
    assert not Scores((), ((1, -0.1), (2, -5.95))).flat


def test_default_prompts_are_the_models_own_chats(tiny_model_dir: Path) -> None:
    renderer = PromptRenderer.load(tiny_model_dir)
    prompts = default_prompts(renderer)
    assert len(prompts) == 4
    assert all(2 <= len(ids) <= renderer.context_length // 2 for ids in prompts)
    assert "capital of France" in renderer.decode(prompts[0])
