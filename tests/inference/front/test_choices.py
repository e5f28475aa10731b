"""``n`` choices of one request: one prompt, one bill, one end."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from inference.front.choices import choice_seed
from tests.inference.front.actors import TinyWorker
from tests.inference.front.answers import CHAT, COMPLETIONS, gathered, post

PROMPT = [3 + place % 80 for place in range(50)]
MESSAGES = [{"role": "user", "content": "Ahoy"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 20, "return_token_ids": True, "seed": 42, **fields}


async def ids(session: aiohttp.ClientSession, worker: TinyWorker, **fields: Any) -> list[list[int]]:
    status, answer = await post(session, worker, COMPLETIONS, body(**fields))
    assert status == 200, answer
    assert [choice["index"] for choice in answer["choices"]] == list(range(fields.get("n", 1)))
    return [choice["token_ids"] for choice in answer["choices"]]


async def idle(session: aiohttp.ClientSession, worker: TinyWorker) -> None:
    for _ in range(200):
        async with session.get(f"{worker.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_")}
        if values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the worker still computes")


def test_each_choice_has_a_random_stream_of_its_own() -> None:
    seeds = [choice_seed(seed, index) for seed in (0, 1, -1, 2**63 - 1) for index in range(16)]
    assert len(set(seeds)) == len(seeds)
    assert choice_seed(7, 0) == 7
    assert choice_seed(7, 1) == 3790099228210195711, "a choice must be drawn alike on every machine"


async def test_choice_zero_is_the_request_with_one(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    three = await ids(session, tiny_worker, n=3)
    assert len({tuple(choice) for choice in three}) == 3
    assert await ids(session, tiny_worker) == three[:1]
    assert await ids(session, tiny_worker, n=2, best_of=2) == three[:2]


async def test_a_choice_is_the_same_alone_and_in_company(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession
) -> None:
    alone = await ids(session, tiny_worker, n=4)
    others = [ids(session, tiny_worker, n=3, seed=seed, prompt=PROMPT[seed:]) for seed in range(5)]
    together, *_ = await asyncio.gather(ids(session, tiny_worker, n=4), *others)
    assert together == alone


async def test_choices_without_a_seed_differ(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    found = await ids(session, tiny_worker, n=16, seed=None)
    assert len({tuple(choice) for choice in found}) == 16


async def test_the_prompt_is_counted_and_computed_once(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    async def counts() -> dict[str, float]:
        async with session.get(f"{tiny_worker.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:")}

    prompt = [90 + place for place in range(97)]  # six blocks of 16 and one token
    before = await counts()
    _, answer = await post(session, tiny_worker, COMPLETIONS, body(prompt=prompt, n=8, max_tokens=5, ignore_eos=True))
    await idle(session, tiny_worker)
    after = await counts()
    assert answer["usage"] == {
        "prompt_tokens": 97,
        "completion_tokens": 40,
        "total_tokens": 137,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 97
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 40
    hits = after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"]
    assert hits == 7 * 96, "each further choice computes the last token alone"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stream_of_choices(tiny_worker: TinyWorker, session: aiohttp.ClientSession, path: str) -> None:
    fields: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "Ahoy"}
    fields |= {"n": 3, "seed": 9, "max_tokens": 25, "logit_bias": {"2": 3}}
    _, whole = await post(session, tiny_worker, path, fields)
    _, events = await post(
        session, tiny_worker, path, {**fields, "stream": True, "stream_options": {"include_usage": True}}
    )
    found = gathered(events)
    assert sorted(found) == [0, 1, 2]
    for choice in whole["choices"]:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert found[choice["index"]]["text"] == text
        assert found[choice["index"]]["ends"] == [choice["finish_reason"]]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all(event["usage"] is None for event in events[:-1])
    assert len({event["id"] for event in events}) == 1
    if path == CHAT:
        roles = [event["choices"][0]["index"] for event in events[:-1] if event["choices"][0]["delta"].get("role")]
        assert sorted(roles) == [0, 1, 2]


async def test_each_choice_echoes_and_scores_the_prompt(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession
) -> None:
    fields = {"prompt": "Ahoy, two tenants", "echo": True, "logprobs": 1, "n": 3, "max_tokens": 3}
    _, answer = await post(session, tiny_worker, COMPLETIONS, fields)
    prompt = answer["usage"]["prompt_tokens"]
    scores = [choice["logprobs"]["token_logprobs"][:prompt] for choice in answer["choices"]]
    assert scores[0] == scores[1] == scores[2]
    assert all(choice["text"].startswith("Ahoy, two tenants") for choice in answer["choices"])
    nothing = {**fields, "max_tokens": 0}
    _, answer = await post(session, tiny_worker, COMPLETIONS, nothing)
    assert [choice["text"] for choice in answer["choices"]] == ["Ahoy, two tenants"] * 3
    assert answer["usage"]["completion_tokens"] == 0


async def test_the_grant_bounds_all_choices_together(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    status, answer = await post(session, tiny_worker, COMPLETIONS, body(n=4, max_tokens=5), max_output=19)
    assert (status, answer["error"]["code"]) == (403, "grant_refused")
    status, answer = await post(session, tiny_worker, COMPLETIONS, body(n=4, max_tokens=None), max_output=3)
    assert (status, answer["error"]["code"]) == (403, "grant_refused")
    fields = body(n=4, max_tokens=None, ignore_eos=True)
    status, answer = await post(session, tiny_worker, COMPLETIONS, fields, max_output=21)
    assert status == 200
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [5] * 4
    assert (await post(session, tiny_worker, COMPLETIONS, body(n=4, max_tokens=5), max_output=20))[0] == 200


async def test_a_client_that_leaves_ends_all_choices(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    headers = {"Authorization": f"Bearer {tiny_worker.signer.token()}"}
    fields = body(model=tiny_worker.model, n=8, max_tokens=50, ignore_eos=True, stream=True)
    async with session.post(tiny_worker.url + COMPLETIONS, json=fields, headers=headers) as response:
        await response.content.readuntil(b'"index":7')
    await idle(session, tiny_worker)


async def test_each_choice_stops_by_itself(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    free = body(n=6, ignore_eos=True, max_tokens=30)
    _, answer = await post(session, tiny_worker, COMPLETIONS, free)
    stop = answer["choices"][2]["text"][5:8]
    _, stopped = await post(session, tiny_worker, COMPLETIONS, {**free, "stop": [stop]})
    for before, after in zip(answer["choices"], stopped["choices"], strict=True):
        cut = before["text"].find(stop)
        assert after["text"] == (before["text"] if cut < 0 else before["text"][:cut])
        assert after["finish_reason"] == ("length" if cut < 0 else "stop")
    assert stopped["choices"][2]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in stopped["choices"])
