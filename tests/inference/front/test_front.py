"""The front over a real socket, with a fake core behind it: dialect, grants, disconnects, deaths."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from inference.adapter_format import content_digest, store_path
from inference.client import WorkerClient
from inference.errors import (
    AdapterNotFound,
    GrantRefused,
    InvalidRequest,
    Overloaded,
    WorkerUnavailable,
)
from inference.model_store import fingerprint_of
from inference.protocol import Delta
from tests.inference.front.actors import Signer, WorkerProcess, is_alive

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def signer(smollm_dir: Path) -> Signer:
    return Signer(fingerprint_of(smollm_dir))


@pytest.fixture(scope="module")
def shared(smollm_dir: Path, signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(smollm_dir, tmp_path_factory.mktemp("worker"), signer)
    yield worker
    assert worker.stop() == 0
    assert not is_alive(worker.core_pid)


@pytest.fixture
def own(smollm_dir: Path, signer: Signer, tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker that the test may break; slow enough to be caught in the act."""
    worker = WorkerProcess(smollm_dir, tmp_path, signer, "--step-seconds", "0.02", "--max-waiting", "4")
    yield worker
    worker.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def collect(client: WorkerClient, token: str, **body: Any) -> list[Delta]:
    return [delta async for delta in client.generate({"model": "fake", "prompt": PROMPT, **body}, token)]


async def post(session: aiohttp.ClientSession, url: str, body: Any, token: str | None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.post(url, data=data, headers=headers) as response:
        text = await response.text()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text


async def settled(worker: WorkerProcess, session: aiohttp.ClientSession, *, seconds: float = 2.0) -> None:
    """The worker is idle again within so many seconds: nothing runs, nothing waits, no block is held."""
    client = WorkerClient(worker.url, session)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        lines = (await client.metrics_text()).splitlines()
        values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:")}
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        if all(values[name] == 0 for name in names):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the worker still holds something")


def add_adapter(worker: WorkerProcess, folder: Path, name: str, *, broken: bool = False) -> str:
    """An adapter in the content store; the fake runner asks no more of it than to be there."""
    source = folder / name
    source.mkdir()
    (source / "adapter_config.json").write_text(json.dumps({"name": name}))
    (source / "adapter_model.safetensors").write_bytes(name.encode())
    digest = content_digest(source)
    if broken:
        (source / "broken").touch()
    shutil.copytree(source, store_path(worker.store, digest), dirs_exist_ok=True)
    return digest


# region the dialect


async def test_a_stream_has_ids_text_and_usage(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    deltas = await collect(WorkerClient(shared.url, session), shared.signer.token(), max_tokens=20)
    assert sum(len(delta.token_ids) for delta in deltas) == 20
    assert deltas[-1].usage is not None
    assert (deltas[-1].usage.prompt_tokens, deltas[-1].usage.completion_tokens) == (5, 20)
    assert deltas[-2].finish_reason == "length"


async def test_it_says_where_the_time_went(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    """Streamed with the first token and the usage, and in whole answers; of several choices the whole request's."""
    began = time.monotonic()
    deltas = await collect(WorkerClient(shared.url, session), shared.signer.token(), max_tokens=20)
    took = (time.monotonic() - began) * 1000
    assert [delta.timings is None for delta in deltas] == [False] + [True] * (len(deltas) - 2) + [False]
    first, timings = deltas[0].timings, deltas[-1].timings
    assert first is not None
    assert timings is not None
    assert (first.queue_ms, first.prefill_ms, first.decode_ms) == (timings.queue_ms, timings.prefill_ms, 0.0)
    assert timings.decode_ms > 0
    assert timings.queue_ms + timings.prefill_ms + timings.decode_ms <= took
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 5, "n": 2}
    status, whole = await post(session, f"{shared.url}/v1/completions", body, shared.signer.token())
    assert status == 200
    assert whole["loraplex"].keys() == {"queue_ms", "prefill_ms", "decode_ms"}
    assert all(value >= 0 for value in whole["loraplex"].values())


async def test_only_the_first_event_says_what_was_cached(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    """Of several choices too; and nothing is said to who did not ask for the usage."""
    client = WorkerClient(shared.url, session)
    for count in (1, 3):
        deltas = await collect(client, shared.signer.token(), max_tokens=6, n=count)
        assert deltas[0].cached_tokens == 0
        assert all(delta.cached_tokens is None for delta in deltas[1:])
        assert all(delta.timings is None for delta in deltas[1:-1])
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 6, "stream": True}
    status, text = await post(session, f"{shared.url}/v1/completions", body, shared.signer.token())
    assert status == 200
    assert '"loraplex"' not in text


async def test_whole_and_streamed_answers_agree(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    url = f"{shared.url}/v1/completions"
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 30, "return_token_ids": True}
    status, whole = await post(session, url, body, shared.signer.token())
    assert status == 200
    deltas = await collect(WorkerClient(shared.url, session), shared.signer.token(), max_tokens=30)
    assert whole["choices"][0]["text"] == "".join(delta.text for delta in deltas)
    assert whole["choices"][0]["token_ids"] == [token for delta in deltas for token in delta.token_ids]
    assert whole["usage"]["completion_tokens"] == 30


async def test_chat_chunks_begin_with_the_role(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {shared.signer.token()}"}
    async with session.post(f"{shared.url}/v1/chat/completions", json=body, headers=headers) as response:
        lines = [line[6:] for line in (await response.text()).split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 3
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_every_sampling_parameter_reaches_the_core(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    sampling = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "49151": 3.5},
        "seed": -(1 << 63),
        "stop": ["never there"],
        "stop_token_ids": [49151],
        "ignore_eos": True,
        "min_tokens": 2,
        "user": "somebody",
    }
    deltas = await collect(WorkerClient(shared.url, session), shared.signer.token(), max_tokens=4, **sampling)
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 4


async def test_stop_strings_end_the_text_across_tokens(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    client = WorkerClient(shared.url, session)
    text = "".join(delta.text for delta in await collect(client, shared.signer.token(), max_tokens=40))
    stop = text[20:28]
    deltas = await collect(client, shared.signer.token(), max_tokens=40, stop=[stop, "never there"])
    assert "".join(delta.text for delta in deltas) == text[: text.index(stop)]
    assert deltas[-2].finish_reason == "stop"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == sum(len(delta.token_ids) for delta in deltas) < 40
    await settled(shared, session)


async def test_the_cache_is_the_grants_namespace(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    client = WorkerClient(shared.url, session)
    prompt = list(range(100, 150))

    async def cached(namespace: str) -> int:
        deltas = await collect(client, shared.signer.token(namespace=namespace), prompt=prompt, max_tokens=1)
        assert deltas[-1].usage is not None
        assert [delta.cached_tokens for delta in deltas] == [deltas[-1].usage.cached_tokens, None]
        return deltas[-1].usage.cached_tokens

    assert await cached("one") == 0
    assert await cached("one") == 48
    assert await cached("two") == 0


async def test_adapters_load_on_demand_and_by_hand(
    shared: WorkerProcess, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    client, operator = WorkerClient(shared.url, session), shared.signer.operator()
    one, two = add_adapter(shared, tmp_path, "one"), add_adapter(shared, tmp_path, "two")
    outputs = {}
    for digest in (one, two):
        deltas = await collect(client, shared.signer.token(adapter=digest), model=digest, max_tokens=8)
        outputs[digest] = [token for delta in deltas for token in delta.token_ids]
    assert outputs[one] != outputs[two]
    assert {one, two} <= {model["id"] for model in await client.models(operator)}
    with pytest.raises(InvalidRequest, match="already loaded"):
        await client.load_adapter(one, str(store_path(shared.store, one)), operator)
    await client.unload_adapter(one, operator)
    with pytest.raises(AdapterNotFound):
        await client.unload_adapter(one, operator)
    await client.load_adapter(one, str(store_path(shared.store, one)), operator)
    await client.unload_adapter(one, operator)
    await client.load_adapter(one, None, operator)
    assert one in {model["id"] for model in await client.models(operator)}
    with pytest.raises(AdapterNotFound):
        await client.load_adapter("0" * 64, None, operator)
    with pytest.raises(InvalidRequest, match="lora_path is missing"):
        await client.load_adapter("../x", None, operator)


async def test_loading_stays_inside_the_store(
    shared: WorkerProcess, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    client, operator = WorkerClient(shared.url, session), shared.signer.operator()
    add_adapter(shared, tmp_path, "outside")
    link = shared.store / "link"
    link.symlink_to(tmp_path / "outside")
    for path in (str(tmp_path / "outside"), str(link), f"{shared.store}/../x", "/etc", "\0", "/proc/self/root"):
        with pytest.raises(AdapterNotFound, match="outside"):
            await client.load_adapter("x", path, operator)
    link.unlink()


async def test_an_adapter_that_fails_fails_only_its_requests(
    shared: WorkerProcess, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    client = WorkerClient(shared.url, session)
    broken = add_adapter(shared, tmp_path, "broken", broken=True)
    changed = add_adapter(shared, tmp_path, "changed")
    (store_path(shared.store, changed) / "adapter_model.safetensors").write_bytes(b"something else")
    outcomes = await asyncio.gather(
        collect(client, shared.signer.token(adapter=broken), model=broken),
        collect(client, shared.signer.token(adapter=changed), model=changed),
        collect(client, shared.signer.token(adapter="ab" * 32), model="ab" * 32),
        collect(client, shared.signer.token(), max_tokens=5),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "AdapterInvalid",
        "AdapterInvalid",
        "AdapterNotFound",
        "list",
    ]
    await settled(shared, session)


async def test_tokenize_is_the_operators(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    operator = shared.signer.operator()
    status, answer = await post(session, f"{shared.url}/tokenize", {"prompt": "hello world"}, operator)
    assert (status, answer["count"]) == (200, 2)
    status, back = await post(session, f"{shared.url}/detokenize", {"tokens": answer["tokens"]}, operator)
    assert (status, back) == (200, {"prompt": "hello world"})
    for path in ("tokenize", "detokenize", "v1/load_lora_adapter", "v1/unload_lora_adapter"):
        status, error = await post(session, f"{shared.url}/{path}", {}, shared.signer.token())
        assert (status, error["error"]["code"]) == (401, "operator_token_invalid")


async def test_health_and_metrics(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    client = WorkerClient(shared.url, session)
    assert (await client.health())["status"] == "ok"
    await collect(client, shared.signer.token(), max_tokens=4)
    text = await client.metrics_text(shared.signer.operator())
    for name in (
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_hits_total",
        "vllm:lora_requests_info",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:kv_cache_usage_perc",
    ):
        assert name in text


# endregion
# region refusals


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"surprise": 1}, "surprise"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"return_tokens_as_token_ids": 1}, "return_tokens_as_token_ids"),
        ({"echo": "yes"}, "echo"),
        ({"echo": False, "max_tokens": 0}, "max_tokens"),
        ({"echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [1 << 40]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "\ud800"}, None),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"min_tokens": 99, "max_tokens": 9}, "min_tokens"),
        ({"seed": 1 << 70}, "seed"),
        ({"priority": 1.5}, "priority"),
        ({"model": None}, "model"),
        ({"model": ["fake"]}, "model"),
    ],
)
async def test_bad_fields_are_named(
    shared: WorkerProcess, session: aiohttp.ClientSession, change: Any, param: str | None
) -> None:
    body = {"model": "fake", "prompt": PROMPT, **change}
    status, answer = await post(session, f"{shared.url}/v1/completions", body, shared.signer.token())
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["param"] == param


async def test_chat_features_that_are_not_built_are_refused_by_name(
    shared: WorkerProcess, session: aiohttp.ClientSession
) -> None:
    for name, value in (
        ("tools", "x"),
        ("tool_choice", "required"),
        ("response_format", "json"),
        ("functions", []),
        ("top_logprobs", 3),
        ("logprobs", 3),
        ("echo", True),
        ("best_of", 2),
        ("max_tokens", 0),
    ):
        body = {"model": "fake", "messages": [{"role": "user", "content": "x"}], name: value}
        status, answer = await post(session, f"{shared.url}/v1/chat/completions", body, shared.signer.token())
        assert (status, answer["error"]["param"]) == (400, name)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{" * 5000, b'{"prompt": NaN}'])
async def test_garbage_is_no_server_error(shared: WorkerProcess, session: aiohttp.ClientSession, body: bytes) -> None:
    status, answer = await post(session, f"{shared.url}/v1/completions", body, shared.signer.token())
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


async def test_the_framework_speaks_the_same_shape(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{shared.url}/nowhere") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "not_found")
    async with session.get(f"{shared.url}/v1/completions") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (405, "method_not_allowed")
    status, answer = await post(session, f"{shared.url}/v1/completions", b"x" * 100_001, shared.signer.token())
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


async def test_context_and_cache_are_checked_with_numbers(
    shared: WorkerProcess, session: aiohttp.ClientSession
) -> None:
    url = f"{shared.url}/v1/completions"
    grant = shared.signer.token(max_input=5000, max_output=5000)
    status, answer = await post(session, url, {"model": "fake", "prompt": [1] * 500, "max_tokens": 13}, grant)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "512" in answer["error"]["message"]
    assert "513" in answer["error"]["message"]
    status, answer = await post(session, url, {"model": "fake", "prompt": [1] * 500, "max_tokens": 12}, grant)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 12)
    grant = shared.signer.token(max_input=5000, max_output=5000)
    status, answer = await post(session, url, {"model": "fake", "prompt": [1] * 600}, grant)
    assert (status, answer["error"]["param"]) == (400, "prompt")


def bad_tokens(signer: Signer) -> dict[str, str | None]:
    claims = signer.grant().claims()
    stranger = Signer(signer.base)
    none = jwt.encode(claims, "", algorithm="none")
    confused = jwt.encode(claims, "a secret that the public key is not, long enough", algorithm="HS256")
    return {
        "missing": None,
        "garbage": "x.y.z",
        "forged": stranger.token(),
        "unsigned": none,
        "another algorithm": confused,
        "expired": signer.token(expires_at=int(time.time()) - 1),
        "eternal": signer.token(expires_at=int(time.time()) + 10**7),
        "for another base": signer.token(base="00" * 32),
        "an operator's": signer.operator(),
        "another audience": signer.sign({**claims, "aud": "else"}),
        "two audiences": signer.sign({**claims, "aud": [claims["aud"], "else"]}),
        "another issuer": signer.sign({**claims, "iss": "else"}),
        "without namespace": signer.sign({name: value for name, value in claims.items() if name != "ns"}),
        "empty namespace": signer.token(namespace=""),
        "number as text": signer.sign({**claims, "max_out": "5"}),
        "boolean number": signer.sign({**claims, "max_in": True}),
        "weightless": signer.token(weight=0),
        "weight of 70 bits": signer.token(weight=1 << 70),
        "priority of 70 bits": signer.token(priority=-(1 << 70)),
        "surrogate in the id": signer.token(request_id="\ud800"),
        "id that is no UUID": signer.token(request_id="1"),
        "surrogate in the namespace": signer.token(namespace="\ud800"),
        "too long": signer.token(tenant="x" * 5000),
    }


@pytest.mark.parametrize("kind", list(bad_tokens(Signer("0"))))
async def test_no_token_but_a_valid_one_computes(
    shared: WorkerProcess, session: aiohttp.ClientSession, kind: str
) -> None:
    body = {"model": "fake", "prompt": PROMPT}
    status, answer = await post(session, f"{shared.url}/v1/completions", body, bad_tokens(shared.signer)[kind])
    assert status == 401
    assert answer["error"]["code"] == "grant_invalid"


async def test_a_body_that_disagrees_with_its_grant_is_refused(
    shared: WorkerProcess, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    mine, theirs = add_adapter(shared, tmp_path, "mine"), add_adapter(shared, tmp_path, "theirs")
    url, sign = f"{shared.url}/v1/completions", shared.signer.token
    messages = set()
    for changes, token in (
        ({"model": theirs}, sign(adapter=mine)),
        ({"model": "0" * 64}, sign(adapter=mine)),
        ({"model": "fake"}, sign(adapter=mine)),
        ({"model": mine}, sign()),
        ({"prompt": PROMPT}, sign(max_input=4)),
        ({"max_tokens": 11}, sign(max_output=10)),
        ({"cache_salt": "ns-other"}, sign()),
        ({"priority": -5}, sign()),
    ):
        status, answer = await post(session, url, {"model": "fake", "prompt": PROMPT, **changes}, token)
        assert (status, answer["error"]["code"]) == (403, "grant_refused")
        if "model" in changes:
            messages.add(answer["error"]["message"])
    assert len(messages) == 1, "the refusals tell existing adapters from others"
    agreeing = {"cache_salt": "ns-t", "priority": 0, "max_tokens": 2}
    status, _ = await post(session, url, {"model": "fake", "prompt": PROMPT, **agreeing}, sign())
    assert status == 200


async def test_a_grant_is_good_for_one_request(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    token = shared.signer.token()
    client = WorkerClient(shared.url, session)
    outcomes = await asyncio.gather(*(collect(client, token, max_tokens=5) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(outcome, list) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, GrantRefused) for outcome in outcomes) == 7


async def test_max_tokens_missing_means_all_that_was_granted(
    shared: WorkerProcess, session: aiohttp.ClientSession
) -> None:
    deltas = await collect(WorkerClient(shared.url, session), shared.signer.token(max_output=7))
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 7


# endregion
# region disconnects, overload, deaths


async def test_closing_the_iterator_aborts_at_the_worker(own: WorkerProcess, session: aiohttp.ClientSession) -> None:
    stream = WorkerClient(own.url, session).generate({"model": "fake", "prompt": PROMPT}, own.signer.token())
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    await settled(own, session)


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnects_at_any_moment_leave_nothing(
    own: WorkerProcess, session: aiohttp.ClientSession, stream: bool
) -> None:
    async def one(number: int) -> None:
        body = {"model": "fake", "prompt": [number + 1] * 300, "stream": stream}
        headers = {"Authorization": f"Bearer {own.signer.token()}"}
        timeout = aiohttp.ClientTimeout(total=0.01 + number * 0.013)
        try:
            async with session.post(f"{own.url}/v1/completions", json=body, headers=headers, timeout=timeout) as reply:
                await reply.read()
        except TimeoutError:
            pass

    await asyncio.gather(*(one(number) for number in range(24)))
    await settled(own, session)
    assert len(await collect(WorkerClient(own.url, session), own.signer.token(), max_tokens=3)) >= 2


async def test_a_full_queue_refuses_and_the_grant_can_try_again(
    own: WorkerProcess, session: aiohttp.ClientSession
) -> None:
    client = WorkerClient(own.url, session)
    tokens = [own.signer.token() for _ in range(20)]
    outcomes = await asyncio.gather(
        *(collect(client, token, max_tokens=20) for token in tokens), return_exceptions=True
    )
    refused = [token for token, outcome in zip(tokens, outcomes, strict=True) if isinstance(outcome, Overloaded)]
    assert 4 <= len(refused) <= 16
    assert len(refused) + sum(isinstance(outcome, list) for outcome in outcomes) == 20
    assert await collect(client, refused[0], max_tokens=2)


@pytest.mark.parametrize("stream", [False, True])
async def test_further_choices_find_room_in_a_full_queue(
    own: WorkerProcess, session: aiohttp.ClientSession, stream: bool
) -> None:
    """One runs and four may wait, but the request of these sixteen has begun: its client may have tokens already."""
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 20, "n": 16, "stream": stream, "ignore_eos": True}
    status, answer = await post(session, f"{own.url}/v1/completions", body, own.signer.token(max_output=320))
    assert status == 200
    if stream:
        *chunks, _ = [line.removeprefix("data: ") for line in answer.split("\n\n") if line]
        choices = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
    else:
        choices = answer["choices"]
    ended = [choice["index"] for choice in choices if choice["finish_reason"] == "length"]
    assert sorted(ended) == list(range(16))
    await settled(own, session)


async def test_a_slow_reader_gets_its_tokens_together(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    """It reads one byte, and the rest when everything is computed; what no buffer took until then has gathered."""
    loop, body = asyncio.get_running_loop(), {"model": "fake", "prompt": PROMPT, "max_tokens": 400, "n": 2}
    content = json.dumps({**body, "stream": True, "logprobs": 1, "return_token_ids": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
    grant = shared.signer.token(max_output=800)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # the sender's buffer goes by it
        await loop.sock_connect(connection, ("127.0.0.1", int(shared.url.rsplit(":", 1)[1])))
        await loop.sock_sendall(connection, head % (grant.encode(), len(content), content))
        received = await loop.sock_recv(connection, 1)
        await settled(shared, session, seconds=20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        while not received.rstrip(b"\r\n0").endswith(b"[DONE]"):
            part = await loop.sock_recv(connection, 1 << 16)
            assert part, received[-1000:]
            received += part
    events = [json.loads(line.removeprefix(b"data: ")) for line in received.splitlines() if line.startswith(b"data: {")]
    answers: list[list[int]] = [[], []]
    for event in events:
        (choice,) = event["choices"]
        assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])
        answers[choice["index"]] += choice["token_ids"]
    assert [len(tokens) for tokens in answers] == [400, 400]
    assert len(events) < 700, "what came while it did not read was sent token by token"
    assert max(len(event["choices"][0]["token_ids"]) for event in events) > 20


async def begun(client: WorkerClient, token: str, **body: Any) -> asyncio.Task[list[Delta]]:
    """A request that runs and has given its first token."""
    first = asyncio.Event()

    async def answer() -> list[Delta]:
        deltas = []
        async for delta in client.generate({"model": "fake", "prompt": PROMPT, **body}, token):
            deltas.append(delta)
            first.set()
        return deltas

    running = asyncio.create_task(answer())
    await asyncio.wait_for(first.wait(), 10)
    return running


async def refused_by_health(client: WorkerClient) -> Overloaded:
    """Asks until the worker says that it takes nothing more."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            await client.health()
        except Overloaded as error:
            return error
        await asyncio.sleep(0.01)
    raise AssertionError("the worker did not notice the signal")


async def test_a_killed_core_ends_streams_with_an_error_and_the_worker(
    own: WorkerProcess, session: aiohttp.ClientSession
) -> None:
    client = WorkerClient(own.url, session)
    streams = [await begun(client, own.signer.token()) for _ in range(4)]
    os.kill(own.core_pid, signal.SIGKILL)
    started = time.monotonic()
    outcomes = await asyncio.gather(*streams, return_exceptions=True)
    assert time.monotonic() - started < 2
    assert all(isinstance(outcome, WorkerUnavailable) for outcome in outcomes)
    assert all("core has stopped" in str(outcome) for outcome in outcomes)
    assert await asyncio.to_thread(own.process.wait, 10) == 1


async def test_a_killed_front_takes_its_core_along(own: WorkerProcess, session: aiohttp.ClientSession) -> None:
    own.process.kill()
    own.process.wait()
    deadline = time.monotonic() + 3
    while is_alive(own.core_pid) and time.monotonic() < deadline:  # noqa: ASYNC110 - another process has no event
        await asyncio.sleep(0.05)
    assert not is_alive(own.core_pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(own: WorkerProcess, session: aiohttp.ClientSession, number: int) -> None:
    client = WorkerClient(own.url, session)
    running = await begun(client, own.signer.token(), max_tokens=60)
    own.process.send_signal(number)
    assert "shutting down" in str(await refused_by_health(client))
    with pytest.raises(Overloaded, match="shutting down"):
        await collect(client, own.signer.token(), max_tokens=1)
    deltas = await running
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 60
    assert await asyncio.to_thread(own.process.wait, 10) == 0


async def test_a_drain_has_a_deadline(own: WorkerProcess, session: aiohttp.ClientSession) -> None:
    client = WorkerClient(own.url, session)
    running = await begun(client, own.signer.token(max_output=400), max_tokens=400)
    own.process.send_signal(signal.SIGTERM)
    with pytest.raises(WorkerUnavailable, match="shut down before"):
        await running
    assert await asyncio.to_thread(own.process.wait, 10) == 0


# endregion


async def test_health_names_the_fingerprint(shared: WorkerProcess, session: aiohttp.ClientSession) -> None:
    health = await WorkerClient(shared.url, session).health()
    assert health["fingerprint"] == shared.signer.base
