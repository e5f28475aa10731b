"""Keys: refused offline when mistyped, hashed under a versioned pepper, never shown by accident."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants import keys
from tenants.errors import InvalidKey, NotConfigured


def test_a_new_key_parses() -> None:
    generated = keys.generate()
    text = generated.secret.reveal()
    prefix, kind, public_id, rest = text.split("_")
    assert (prefix, kind, public_id, len(rest)) == ("lpx", "live", generated.public_id, 33 + 6)
    assert 62**33 >= 2**190
    parsed = keys.parse(text)
    assert parsed.public_id == generated.public_id
    assert parsed.secret.reveal() == text
    assert keys.generate().public_id != generated.public_id


@given(position=st.integers(9, 60), character=st.sampled_from("0Az_-é\n"))
def test_every_mistyped_character_is_noticed(position: int, character: str) -> None:
    text = "lpx_live_AAAAAAAAAAAA_" + "b" * 33
    good = text + keys._base62(keys.zlib.crc32(text.encode()), 6)
    assert keys.parse(good).public_id == "A" * 12
    bad = good[:position] + character + good[position + 1 :]
    if bad != good:
        with pytest.raises(InvalidKey):
            keys.parse(bad)


@pytest.mark.parametrize("text", ["", "sk-123", "lpx_live_", "lpx_live_" + "a" * 52, "x" * 10_000, "\0", "ключ"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidKey):
        keys.parse(text)


def test_peppers_are_versioned(settings: Any) -> None:
    settings.KEY_PEPPERS = {1: b"a" * 32, 3: b"b" * 32}
    secret = keys.generate().secret
    assert keys.current_pepper() == 3
    assert keys.hash(secret, 1) != keys.hash(secret, 3)
    assert keys.matches(secret, keys.hash(secret, 1), 1)
    assert not keys.matches(secret, keys.hash(secret, 1), 3)
    assert not keys.matches(keys.generate().secret, keys.hash(secret, 3), 3)
    with pytest.raises(NotConfigured, match="version 2"):
        keys.hash(secret, 2)
    settings.KEY_PEPPERS = {}
    with pytest.raises(NotConfigured, match="KEY_PEPPERS"):
        keys.current_pepper()


def test_a_secret_does_not_show_itself(caplog: pytest.LogCaptureFixture) -> None:
    generated = keys.generate()
    text = generated.secret.reveal()
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r %s", generated, generated.secret, [generated.secret])
    shown = f"{generated} {generated!r} {generated.secret} {[generated.secret]} {caplog.text}"
    assert text not in shown
    assert text[22:40] not in shown
    with pytest.raises(TypeError):
        pickle.dumps(generated.secret)
