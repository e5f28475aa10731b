"""Bytes of tokens, and the shapes in which log-probabilities leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from inference.logprob_shapes import Echo, LogprobShapes
from inference.prompt import PromptRenderer
from inference.protocol import Delta, TokenLogprob
from inference.token_bytes import TokenBytes

TEXTS = ["plain", "Größe 東京 🏴‍☠️\n\ttab", "ends in half", "<|im_start|>user", ""]


@pytest.fixture(scope="module", params=["tiny", "smollm"])
def renderer(request: pytest.FixtureRequest) -> PromptRenderer:
    return PromptRenderer.load(
        request.getfixturevalue(f"{request.param}_model_dir" if request.param == "tiny" else "smollm_dir")
    )


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Path) -> PromptRenderer:
    return PromptRenderer.load(tiny_model_dir)


def sentencepiece() -> Tokenizer:
    """As Llama 2 and Mistral have it: ``▁`` for spaces, unknown characters byte by byte."""
    pieces = ["<unk>", "▁Hi", "▁", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_all_tokens_are_the_texts_own(renderer: PromptRenderer, text: str) -> None:
    ids = renderer.encode(text, add_special_tokens=False)
    assert b"".join(renderer.token_bytes.of(token) for token in ids) == text.encode()


def test_every_token_has_bytes_and_ids_beyond_the_tokenizer_have_none(renderer: PromptRenderer) -> None:
    tokens = renderer.token_bytes
    assert all(tokens.of(token) for token in range(renderer.vocab_size))
    assert tokens.of(renderer.vocab_size + 5) == b""
    assert tokens.text(renderer.vocab_size + 5) == ""


def test_sentencepiece_bytes() -> None:
    tokens = TokenBytes(sentencepiece())
    assert [tokens.of(token) for token in (1, 2, 3, 4 + 0xF0)] == [b" Hi", b" ", b"!", b"\xf0"]
    assert tokens.of(tokens._tokenizer.token_to_id("</s>")) == b"</s>"
    assert (tokens.text(1), tokens.text(4 + 0xF0), tokens.text(4 + 0xF0, prefix="bytes:")) == (
        " Hi",
        "\\xf0",
        "bytes:\\xf0",
    )


def entry(token: int, logprob: float = -1.0, *top: int) -> TokenLogprob:
    return TokenLogprob(token, logprob, tuple((other, -float(rank)) for rank, other in enumerate(top)))


def test_a_chats_content_spells_its_message(tiny: PromptRenderer) -> None:
    ids = tiny.encode("Größe 東", add_special_tokens=False)
    (end,) = tiny.eos_token_ids
    entries = tuple(entry(token, -0.5, token, 7) for token in [*ids, end])
    shape = LogprobShapes(tiny).chat(Delta("Größe 東", logprobs=entries, finish_reason="stop"))
    assert shape is not None
    assert bytes(byte for token in shape["content"] for byte in token["bytes"]).decode() == "Größe 東"
    assert any("\\x" in token["token"] for token in shape["content"]), "a character of several tokens is escaped"
    assert shape["content"][0]["top_logprobs"][1]["bytes"] == list(tiny.token_bytes.of(7))
    assert shape["refusal"] is None


def test_the_token_that_ends_a_chat_is_no_content(tiny: PromptRenderer) -> None:
    shapes = LogprobShapes(tiny)
    (end,) = tiny.eos_token_ids
    assert shapes.chat(Delta("", logprobs=(entry(end),), finish_reason="stop")) is None
    assert shapes.chat(Delta("", logprobs=(entry(40),), finish_reason="stop"), ends=(40,)) is None
    assert shapes.chat(Delta("x", logprobs=(entry(end),), finish_reason="length")) is not None, "ignore_eos"
    assert shapes.chat(Delta("x")) is None


def test_a_completion_has_one_entry_a_token(tiny: PromptRenderer) -> None:
    (end,) = tiny.eos_token_ids
    delta = Delta("ab", logprobs=(entry(40, -2.0, 41), entry(end, float("-inf"))), offsets=(0, 2), finish_reason="stop")
    shape = LogprobShapes(tiny).completion(delta)
    name, other = tiny.token_bytes.text(40), tiny.token_bytes.text(41)
    assert shape == {
        "tokens": [name, "<|im_end|>"],
        "token_logprobs": [-2.0, -9999.0],
        "top_logprobs": [{other: -0.0, name: -2.0}, {"<|im_end|>": -9999.0}],
        "text_offset": [0, 2],
    }
    as_ids = LogprobShapes(tiny, as_ids=True).completion(delta)
    assert as_ids is not None
    assert as_ids["tokens"] == ["token_id:40", f"token_id:{end}"]
    assert as_ids["top_logprobs"][0] == {"token_id:41": -0.0, "token_id:40": -2.0}


def test_an_echoed_prompt_goes_before(tiny: PromptRenderer) -> None:
    text = "Größe 東京, <|im_end|>Paris"
    ids = tiny.encode(text, add_special_tokens=False)
    plain = Echo.of(tiny, ids)
    assert plain.text == "Größe 東京, Paris", "ids are decoded as answers are: without control tokens"
    assert Echo.of(tiny, ids, text).text == text
    assert plain.offsets[0] == 0
    assert list(plain.offsets) == sorted(plain.offsets)
    echo = Echo(plain.text, ids, plain.offsets, [entry(token) for token in ids[1:]])
    delta = Delta("!", logprobs=(entry(9),), offsets=(0,))
    shape = LogprobShapes(tiny).completion(delta, shift=len(plain.text), echo=echo)
    assert shape is not None
    assert [len(values) for values in shape.values()] == [len(ids) + 1] * 4
    assert (shape["token_logprobs"][0], shape["top_logprobs"][0]) == (None, None)
    assert shape["text_offset"] == [*plain.offsets, len(plain.text)]


def test_prompt_logprobs_are_keyed_by_id(tiny: PromptRenderer) -> None:
    found = LogprobShapes(tiny).prompt([5, 40, 41], [entry(40, -3.0, 7, 8), entry(41, 0.0, 41)])
    assert found[0] is None
    assert found[1] == {
        "40": {"logprob": -3.0, "rank": None, "decoded_token": tiny.token_bytes.text(40)},
        "7": {"logprob": -0.0, "rank": 1, "decoded_token": tiny.token_bytes.text(7)},
        "8": {"logprob": -1.0, "rank": 2, "decoded_token": tiny.token_bytes.text(8)},
    }
    assert list(found[2] or {}) == ["41"]
