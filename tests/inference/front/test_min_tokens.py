"""What min_tokens holds back besides end tokens."""

from __future__ import annotations

import aiohttp

from tests.inference.front.actors import TinyWorker
from tests.inference.front.answers import COMPLETIONS, post


async def test_min_tokens_hold_stop_strings_back(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    _, free = await post(session, tiny_worker, COMPLETIONS, body)
    text = free["choices"][0]["text"]
    early = {**body, "stop": [text[:1]]}
    _, answer = await post(session, tiny_worker, COMPLETIONS, early)
    assert answer["choices"][0]["text"] == ""
    assert answer["usage"]["completion_tokens"] < 4
    for least in (4, 12):
        _, answer = await post(session, tiny_worker, COMPLETIONS, {**early, "min_tokens": least})
        (choice,) = answer["choices"]
        assert text.startswith(choice["text"])
        assert choice["text"].startswith(text[:1])
        assert answer["usage"]["completion_tokens"] > least or choice["finish_reason"] == "length"
