"""Both endpoints over HTTP, against a worker that counts."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from gateway.embedded.process import stop
from tenants.models import InferenceRequest
from tests.gateway.house import Actor, House, Process, started_stub, wait_for
from tests.gateway.stub_worker import (
    ABSURD,
    AT_FAULT,
    BREAK_OFF,
    BUSY,
    CACHED,
    EARLY,
    EARLY_BREAK_OFF,
    ERROR_EVENT,
    MISTIMED,
    SHED,
    TIMED,
)

CHAT = "/v1/chat/completions"


def body(house: House, **fields: Any) -> dict[str, Any]:
    return {"model": house.base.name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5} | fields


async def post(gateway: Process, path: str, actor: Actor | None, data: Any) -> tuple[int, Any, Any]:
    headers = actor.headers if actor else {}
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + path, json=data, headers=headers) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


async def events(gateway: Process, path: str, actor: Actor, data: Any) -> list[Any]:
    """Every data line of a stream, decoded; ``[DONE]`` as it is."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + path, json=data, headers=actor.headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        text = await answer.text()
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def test_whole_answer(gateway: Process, house: House, acme: Actor) -> None:
    status, answer, headers = await post(gateway, CHAT, acme, body(house))
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["system_fingerprint"] == f"stub-{house.base.name[:12]}", "the worker's own"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": " 0 1 2 3 4", "refusal": None}
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert headers["x-request-id"].replace("-", "") == answer["id"].removeprefix("chatcmpl-")
    assert int(headers["openai-processing-ms"]) > 0
    row = house.one_row(acme)
    assert (row.prompt_tokens, row.completion_tokens, row.outcome) == (usage["prompt_tokens"], 5, "completed")


@pytest.mark.parametrize(
    ("seed", "said"),
    [(None, (None, None)), (TIMED, (12, 31)), (MISTIMED, (None, None)), (EARLY, (12, 31))],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_time_went_is_kept(
    seed: int | None, said: Any, stream: bool, gateway: Process, house: House, acme: Actor
) -> None:
    """The worker's own words where it says any; the first token by the gateway's clock in any case."""
    data = body(house, seed=seed, stream=stream)
    if stream:
        assert (await events(gateway, CHAT, acme, data))[-1] == "[DONE]"
    else:
        assert (await post(gateway, CHAT, acme, data))[0] == 200
    row = InferenceRequest.objects.get(tenant=acme.tenant, pk=house.one_row(acme).request_id)
    assert row.first_token_ms is not None
    assert 0 <= row.first_token_ms < 5000
    assert (row.queue_ms, row.prefill_ms) == said


@pytest.mark.parametrize(("limit", "generated"), [({"max_output_tokens": 10}, 10), ({}, 16)])
async def test_openais_default_shrinks_to_what_fits(
    limit: dict[str, int], generated: int, gateway: Process, house: House
) -> None:
    actor = house.actor(f"default{generated}", **limit)
    data = {"model": house.base.name, "prompt": "hi"}
    status, answer, _ = await post(gateway, "/v1/completions", actor, data)
    assert (status, answer["usage"]["completion_tokens"]) == (200, generated)
    status, answer, _ = await post(gateway, "/v1/completions", actor, data | {"max_tokens": 16})
    assert status == (400 if limit else 200), "what is asked for is not cut"


async def test_stream_shape(gateway: Process, house: House, acme: Actor) -> None:
    chunks = await events(gateway, CHAT, acme, body(house, stream=True, stream_options={"include_usage": True}))
    assert chunks.pop() == "[DONE]"
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert {c["system_fingerprint"] for c in chunks} == {f"stub-{house.base.name[:12]}"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert all(chunk["usage"] is None for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == " 0 1 2 3 4"


async def test_stream_without_usage_never_mentions_it(gateway: Process, house: House, acme: Actor) -> None:
    chunks = await events(gateway, CHAT, acme, body(house, stream=True))
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [5, 6, 7], [[5, 6, 7]]])
async def test_text_completions(gateway: Process, house: House, acme: Actor, prompt: Any) -> None:
    data = {"model": house.base.name, "prompt": prompt, "max_tokens": 3}
    status, answer, _ = await post(gateway, "/v1/completions", acme, data)
    assert status == 200, answer
    assert answer["choices"] == [{"index": 0, "logprobs": None, "finish_reason": "length", "text": " 0 1 2"}]
    chunks = await events(gateway, "/v1/completions", acme, data | {"stream": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == " 0 1 2"


async def test_the_worker_gets_ids_sampling_and_a_grant(
    gateway: Process, house: House, acme: Actor, stub: Process
) -> None:
    adapter = house.adapter(acme, "pirate", "ab" * 32)
    fields = {"model": "pirate", "temperature": 0.5, "stop": "x", "seed": 77, "top_k": 3}
    status, answer, _ = await post(gateway, CHAT, acme, body(house, **fields))
    assert status == 200
    assert answer["model"] == adapter
    async with aiohttp.ClientSession() as session, session.get(stub.url + "/seen") as seen:
        sent = (await seen.json())["bodies"][-1]
    assert sent.pop("authorization") == "Bearer "
    prompt = sent.pop("prompt")
    assert all(isinstance(token, int) for token in prompt)
    assert len(prompt) == answer["usage"]["prompt_tokens"]
    assert sent == {
        "model": "ab" * 32,
        "max_tokens": 5,
        "temperature": 0.5,
        "stop": ["x"],
        "seed": 77,
        "top_k": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


async def test_a_maximum_that_the_client_did_not_name_is_left_to_the_worker(
    gateway: Process, house: House, stub: Process
) -> None:
    """Its context may be shorter than the model's; and the grant says what was admitted."""
    short = house.actor("short", max_output_tokens=10)
    data = {name: value for name, value in body(house).items() if name != "max_tokens"}
    status, answer, _ = await post(gateway, CHAT, short, data)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 10
    async with aiohttp.ClientSession() as session, session.get(stub.url + "/seen") as seen:
        assert "max_tokens" not in (await seen.json())["bodies"][-1]


async def test_a_client_that_leaves_pays_for_what_was_generated(
    gateway: Process, house: House, acme: Actor, stub: Process
) -> None:
    async with aiohttp.ClientSession() as session:
        data = body(house, stream=True, max_tokens=300)
        async with session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer:
            async for line in answer.content:
                if b" 3" in line:
                    break
            answer.close()
    row = house.one_row(acme)
    assert (row.outcome, row.finish_reason) == ("cancelled", "stopped_by_client")
    assert row.prompt_tokens > 0
    assert 4 <= row.completion_tokens < 100

    async def aborted() -> int:
        async with aiohttp.ClientSession() as session, session.get(stub.url + "/seen") as seen:
            return (await seen.json())["running"]

    for _ in range(100):
        if await aborted() == 0:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the worker still computes for a client that left")


@pytest.mark.parametrize("seed", [EARLY, MISTIMED, TIMED])
async def test_who_leaves_pays_no_more_for_the_prompt_than_who_stays(
    seed: int, gateway: Process, house: House, acme: Actor
) -> None:
    """What was cached and where the time went is known from the first token on, from workers that say it then."""
    async with aiohttp.ClientSession() as session:
        data = body(house, stream=True, max_tokens=300, seed=seed)
        async with session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer:
            await answer.content.readuntil(b" 3")
            answer.close()
    entry = house.one_row(acme)
    assert (entry.outcome, entry.finish_reason) == ("cancelled", "stopped_by_client")
    assert entry.prompt_tokens > CACHED
    row = InferenceRequest.objects.get(tenant=acme.tenant, pk=entry.request_id)
    early = seed == EARLY
    assert entry.cached_tokens == (CACHED if early else 0)
    assert (row.queue_ms, row.prefill_ms) == ((12, 31) if early else (None, None))
    assert row.first_token_ms is not None


async def test_a_worker_that_says_more_was_cached_than_there_is(gateway: Process, house: House, acme: Actor) -> None:
    """It counts as the whole prompt, and no other request's checkpoint fails for it."""
    async with aiohttp.ClientSession() as session:
        data = body(house, stream=True, max_tokens=300, seed=ABSURD)
        async with session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer:
            await answer.content.readuntil(b" 20")
            answer.close()
    entry = house.one_row(acme)
    assert entry.cached_tokens == entry.prompt_tokens
    row = InferenceRequest.objects.get(tenant=acme.tenant, pk=entry.request_id)
    assert row.cached_tokens == entry.prompt_tokens, "as its checkpoint wrote it"


async def test_a_client_of_a_whole_answer_that_leaves(gateway: Process, house: House, acme: Actor) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.5):
                await session.post(gateway.url + CHAT, json=body(house, max_tokens=300), headers=acme.headers)
    row = house.one_row(acme)
    assert (row.outcome, row.finish_reason) == ("cancelled", "stopped_by_client")
    assert 1 <= row.completion_tokens < 100


@pytest.mark.parametrize(("way", "cached"), [(EARLY_BREAK_OFF, CACHED), (ERROR_EVENT, 0)])
async def test_a_worker_lost_in_mid_stream(gateway: Process, house: House, acme: Actor, way: int, cached: int) -> None:
    chunks = await events(gateway, CHAT, acme, body(house, stream=True, seed=way))
    assert chunks[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in chunks
    row = house.one_row(acme)
    assert (row.outcome, row.completion_tokens, row.cached_tokens) == ("failed", 3, cached)
    assert row.prompt_tokens > cached
    assert row.finish_reason == chunks[-1]["error"]["code"]


async def test_a_worker_lost_in_a_whole_answer(gateway: Process, house: House, acme: Actor) -> None:
    status, answer, headers = await post(gateway, CHAT, acme, body(house, seed=BREAK_OFF))
    assert status == 502
    assert answer["error"]["code"] == "worker_lost"
    assert headers["retry-after"] == "1"
    assert house.one_row(acme).finish_reason == "worker_lost"


@pytest.mark.parametrize(
    ("way", "status", "code", "param"), [(AT_FAULT, 400, "invalid_value", "stop"), (SHED, 503, "overloaded", None)]
)
async def test_what_ends_one_request_in_mid_stream_is_no_lost_worker(
    gateway: Process, house: House, acme: Actor, way: int, status: int, code: str, param: str | None
) -> None:
    chunks = await events(gateway, CHAT, acme, body(house, stream=True, seed=way))
    assert (chunks[-1]["error"]["code"], chunks[-1]["error"]["param"]) == (code, param)
    row = house.one_row(acme)
    assert (row.outcome, row.completion_tokens, row.finish_reason) == ("failed", 3, code)
    found, answer, _ = await post(gateway, CHAT, acme, body(house, seed=way))
    assert (found, answer["error"]["code"], answer["error"]["param"]) == (status, code, param)


async def test_a_full_worker_is_503_and_costs_nothing(gateway: Process, house: House, acme: Actor) -> None:
    status, answer, headers = await post(gateway, CHAT, acme, body(house, seed=BUSY, stream=True))
    assert status == 503
    assert answer["error"]["code"] == "overloaded"
    assert int(headers["retry-after"]) >= 1
    assert int(headers["retry-after-ms"]) > 0
    row = house.one_row(acme)
    assert (row.outcome, row.prompt_tokens, row.completion_tokens) == ("failed", 0, 0)
    assert row.finish_reason == "overloaded"


async def test_no_worker_is_503(gateway: Process, bare_house: House, acme: Actor) -> None:
    bare_house.base.fingerprint = "0" * 64
    bare_house.base.save()
    status, answer, headers = await post(gateway, CHAT, acme, body(bare_house))
    assert status == 503
    assert answer["error"]["code"] == "overloaded"
    assert "retry-after" in headers
    assert (bare_house.one_row(acme).prompt_tokens, bare_house.one_row(acme).outcome) == (0, "failed")


async def test_another_worker_takes_over_before_the_first_token(
    gateway: Process, house: House, acme: Actor, tmp_path: Any
) -> None:
    """The first choice (by name) has just died; nobody notices but the log."""
    with started_stub(tmp_path, house.fingerprint) as dying:
        house.worker(dying.url, "a-dying")
        await asyncio.sleep(3.5)  # until the gateway has seen it well
    for _ in range(3):
        status, answer, _ = await post(gateway, CHAT, acme, body(house))
        assert status == 200, answer
    assert [row.outcome for row in house.ledger(acme)] == ["completed"] * 3


async def test_a_worker_that_has_just_moved_is_found(
    gateway: Process, bare_house: House, acme: Actor, tmp_path: Any
) -> None:
    """The only one this process knows is gone, and the address of its successor is younger than the last look."""
    with started_stub(tmp_path, bare_house.fingerprint) as old, started_stub(tmp_path, bare_house.fingerprint) as new:
        row = bare_house.worker(old.url, "moves")
        assert (await post(gateway, CHAT, acme, body(bare_house)))[0] == 200
        row.url = new.url
        row.save()
        stop(old.process)
        status, answer, _ = await post(gateway, CHAT, acme, body(bare_house))
        assert status == 200, answer


async def test_revocation_reaches_a_running_stream(gateway: Process, house: House, acme: Actor) -> None:
    from django.utils import timezone

    async with aiohttp.ClientSession() as session:
        data = body(house, stream=True, max_tokens=400)
        async with session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer:
            await answer.content.readuntil(b" 2")
            acme.key.revoked_at = timezone.now()
            acme.key.save()
            loop = asyncio.get_running_loop()
            revoked = loop.time()
            rest = await answer.text()
    assert loop.time() - revoked < 2.5
    assert json.loads(rest.rstrip().rpartition("data: ")[2])["error"]["code"] == "invalid_api_key"
    row = house.one_row(acme)
    assert (row.outcome, row.finish_reason) == ("cancelled", "invalid_api_key")
    assert row.completion_tokens < 300


async def test_checkpoints_make_the_count_durable(gateway: Process, house: House, acme: Actor) -> None:
    from tenants.models import InferenceRequest

    def mark() -> int:
        found = InferenceRequest.objects.filter(tenant=acme.tenant, state="running").first()
        return found.emitted_tokens if found else 0

    async with aiohttp.ClientSession() as session:
        data = body(house, stream=True, max_tokens=400)
        async with session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer:
            await answer.content.readuntil(b" 2")
            assert wait_for(mark, 4.0) > 0


async def test_the_first_token_is_durable_at_once(gateway: Process, house: House, acme: Actor) -> None:
    """A crash from then on bills the prompt. The checkpoint of all runs would be up to a second away."""
    from tenants.models import InferenceRequest

    waited = []
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            data = body(house, stream=True, max_tokens=400)
            async with session.post(gateway.url + CHAT, json=data, headers=acme.headers) as answer:
                await answer.content.readuntil(b" 0")
                begun = time.monotonic()
                running = InferenceRequest.objects.filter(tenant=acme.tenant, state="running")
                wait_for(lambda running=running: running.filter(emitted_tokens__gt=0).exists(), 4.0)
                waited.append(time.monotonic() - begun)
            await asyncio.sleep(0.1)  # the connection closes
            wait_for(lambda: not house.running(acme))
    assert min(waited[1:]) < 0.5, waited  # the first one's wait may have ended with any checkpoint


async def test_limits_are_refused_with_their_numbers(gateway: Process, house: House) -> None:
    tight = house.actor("tight", requests_per_minute=2, max_output_tokens=10)
    status, _, headers = await post(gateway, CHAT, tight, body(house))
    assert status == 200
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-ratelimit-reset-requests"]
    status, answer, _ = await post(gateway, CHAT, tight, body(house, max_tokens=11))
    assert (status, answer["error"]["param"]) == (400, "max_tokens")
    assert (await post(gateway, CHAT, tight, body(house)))[0] == 200
    status, answer, headers = await post(gateway, CHAT, tight, body(house))
    assert status == 429
    assert answer["error"]["code"] == "rate_limit_exceeded"
    assert answer["error"]["type"] == "rate_limit_error"
    assert int(headers["retry-after"]) >= 1
    assert headers["x-ratelimit-remaining-requests"] == "0"


async def test_concurrency_is_given_back_at_done(gateway: Process, house: House) -> None:
    """With one place, requests one after the other are never refused: [DONE] comes after the settlement."""
    single = house.actor("single", max_concurrent=1)
    for _ in range(10):
        chunks = await events(gateway, CHAT, single, body(house, stream=True, max_tokens=1))
        assert chunks[-1] == "[DONE]"


async def test_many_streams_at_once(gateway: Process, house: House, acme: Actor) -> None:
    streams = await asyncio.gather(*(events(gateway, CHAT, acme, body(house, stream=True)) for _ in range(40)))
    assert all(chunks[-1] == "[DONE]" for chunks in streams)
    assert sum(row.completion_tokens for row in house.ledger(acme)) == 200
