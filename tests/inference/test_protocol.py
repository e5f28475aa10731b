"""The nouns survive their journeys."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from inference.core.messages import Abort, Reply, Step, Submit, decode, encode
from inference.protocol import Grant, SamplingParams

GRANT = Grant("id", "t", "ns", "base", None, 10, 20, -1, 2, 1_900_000_000)


def test_a_grant_is_its_claims() -> None:
    assert Grant.from_claims(json.loads(json.dumps(GRANT.claims()))) == GRANT


@pytest.mark.parametrize("name", [name for name in GRANT.claims() if name not in ("iss", "aud")])
def test_a_grant_with_a_claim_missing_or_mistyped_is_none(name: str) -> None:
    claims = GRANT.claims()
    with pytest.raises((KeyError, TypeError)):
        Grant.from_claims({key: value for key, value in claims.items() if key != name})
    with pytest.raises(TypeError):
        Grant.from_claims({**claims, name: ["x"]})


def test_sampling_params_cross_the_wire() -> None:
    params = SamplingParams(max_tokens=3, stop=("a", "b"), logit_bias={5: -1.5}, seed=-7, stop_token_ids=(1,))
    assert SamplingParams.from_wire(msgpack.unpackb(msgpack.packb(params.wire()), strict_map_key=False)) == params


@pytest.mark.parametrize(
    "message",
    [
        Submit("r", [1, 2], {"logit_bias": {7: 1.0}, "stop": ["a"]}, 1 << 62, "t", "n", None, -3, 1),
        Abort("r"),
        Step([["r", [5], "stop", 16]], [["q", "Overloaded", "full", None]], [["r", 0.5]], [1, 2]),
        Reply(3, "AdapterInvalid", "no", "file"),
    ],
)
def test_messages_cross_the_socket(message: Any) -> None:
    frame = encode(message)
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    assert decode(frame[4:]) == message


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb(["Nobody"]), msgpack.packb(["Abort", 1, 2]), b"\x01"])
def test_a_broken_message_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode(body)
