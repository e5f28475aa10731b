"""Texts that cannot but be too long are refused by their length in characters: nobody tokenises them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from inference.prompt import PromptRenderer
from tests.inference.front.actors import TinyWorker
from tests.inference.front.answers import CHAT, COMPLETIONS, post

LONG = "ab " * 300_000
NOW = {"type": "function", "function": {"name": "now", "description": LONG}}
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": json.dumps({"a": LONG})}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": LONG}),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL]}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [NOW]}),
    ],
)
async def test_too_many_characters(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, path: str, fields: dict[str, Any]
) -> None:
    status, answer = await post(session, tiny_worker, path, {"max_tokens": 1, **fields})
    assert (status, answer["error"]["code"]) == (403, "grant_refused")
    assert answer["error"]["message"].endswith(" or more"), "it was tokenised"


async def test_as_long_as_tokens_may_be(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, tiny_model_dir: Path
) -> None:
    longest = PromptRenderer.load(tiny_model_dir).longest_token
    body = {"prompt": "a" * (longest * 2 + longest - 1), "max_tokens": 1}
    _, answer = await post(session, tiny_worker, COMPLETIONS, body, max_input=2)
    assert not answer["error"]["message"].endswith(" or more"), "two tokens may stand for so many characters"
    _, answer = await post(session, tiny_worker, COMPLETIONS, {**body, "prompt": "a" * longest * 3}, max_input=2)
    assert answer["error"]["message"] == "The grant allows 2 prompt tokens, not 3 or more"
