"""Every error has OpenAI's shape, names its field, and never another tenant's existence."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from gateway.errors import ApiError
from gateway.parsing import parse
from gateway.renderers import check_scores
from gateway.schemas import ChatRequest, CompletionRequest
from inference.protocol import MAX_ANSWER_LOGPROBS, MAX_PROMPT_LOGPROBS
from inference.request_fields import MAX_BIASES
from tests.gateway.house import Actor, House, Process

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


async def call(
    gateway: Process, method: str, path: str, actor: Actor | None = None, **kwargs: Any
) -> tuple[int, Any, Any]:
    """Status, error object and headers; fails unless the answer is exactly OpenAI's error shape."""
    headers = {**(actor.headers if actor else {}), **kwargs.pop("headers", {})}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, gateway.url + path, headers=headers, **kwargs) as answer,
    ):
        assert answer.content_type == "application/json", await answer.text()
        body = await answer.json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]
        return answer.status, body["error"], answer.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/api/nothing", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/api/ws-tickets", 405),
        ("POST", CHAT, 401),
        ("POST", "/v1/completions", 401),
        ("GET", "/v1/models", 401),
        ("GET", "/v1/models/x", 401),
        ("POST", "/api/ws-tickets", 401),
        ("GET", "/api/usage", 401),
        ("GET", "/v1/ws", 426),
        ("POST", "/v1/ws", 426),
    ],
)
async def test_paths_and_methods(gateway: Process, method: str, path: str, status: int) -> None:
    found, error, headers = await call(gateway, method, path)
    assert found == status
    assert error["message"]
    if status == 401:
        assert error["code"] == "invalid_api_key"
        assert headers["www-authenticate"] == "Bearer"
    if status == 405:
        assert headers["allow"]
    if status == 426:
        assert headers["upgrade"] == "websocket"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Basic abc", "Bearer ", "Bearer x y", "Bearer lpx_live_x_y", "Bearer " + "a" * 5000]
)
async def test_wrong_authorization(gateway: Process, header: str) -> None:
    for path in (CHAT, "/v1/completions"):
        status, error, _ = await call(gateway, "POST", path, headers={"authorization": header}, json={})
        assert (status, error["code"]) == (401, "invalid_api_key")
    status, error, _ = await call(gateway, "GET", "/v1/models", headers={"authorization": header})
    assert (status, error["code"]) == (401, "invalid_api_key")
    assert "lpx_live_x_y" not in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"foo": 1}, "foo", "unknown_parameter"),
        ({"stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
        ({"model": None}, "model", "invalid_value"),
        ({"messages": None}, "messages", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "unsupported_parameter",
        ),
        ({"temperature": "1"}, "temperature", "invalid_value"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"stream": "true"}, "stream", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop_token_ids": [49152]}, "stop_token_ids", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"structured_outputs": {"foo": 1}}, "structured_outputs.foo", "unknown_parameter"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"01": 5, "1": 3}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {str(token): 1 for token in range(MAX_BIASES + 1)}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"49152": 1}}, "logit_bias", "invalid_value"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "invalid_value"),
        ({"top_k": 2**31 - 1}, "top_k", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"logprobs": 2}, "logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"echo": True}, "echo", "unknown_parameter"),
        ({"best_of": 2}, "best_of", "unknown_parameter"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"response_format": {"type": "json"}}, "response_format.type", "invalid_value"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "invalid_value"),
        ({"guided_json": {}}, "guided_json", "unknown_parameter"),
        ({"cache_salt": "x"}, "cache_salt", "unknown_parameter"),
        ({"priority": -5}, "priority", "unknown_parameter"),
        ({"prompt_cache_key": "x"}, "prompt_cache_key", "unsupported_parameter"),
    ],
)
async def test_fields_are_refused_by_name(
    gateway: Process, house: House, acme: Actor, fields: dict[str, Any], param: str, code: str
) -> None:
    body = {"model": house.base.name, "messages": MESSAGES} | fields
    status, error, _ = await call(gateway, "POST", CHAT, acme, json=body)
    assert (status, error["param"], error["code"]) == (400, param, code)
    assert error["type"] == "invalid_request_error"
    assert param.partition("[")[0] in error["message"]
    assert house.ledger(acme) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 17}, "n"),
        ({"echo": 1}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": False}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"suffix": "x"}, "suffix"),
    ],
)
async def test_fields_of_text_completions_are_refused_by_name(
    gateway: Process, house: House, acme: Actor, fields: dict[str, Any], param: str
) -> None:
    body = {"model": house.base.name, "prompt": "hi"} | fields
    status, error, _ = await call(gateway, "POST", "/v1/completions", acme, json=body)
    assert (status, error["param"]) == (400, param)
    assert param in error["message"]
    assert house.ledger(acme) == []


def test_a_prompts_logprobs_have_to_fit_into_one_answer() -> None:
    fits = CompletionRequest(model="m", prompt="x", prompt_logprobs=3)
    check_scores(fits, MAX_PROMPT_LOGPROBS // 4)
    with pytest.raises(ApiError) as caught:
        check_scores(fits, MAX_PROMPT_LOGPROBS // 4 + 1)
    assert (caught.value.status, caught.value.param) == (400, "prompt_logprobs")
    echoed = CompletionRequest(model="m", prompt="x", logprobs=3, echo=True)
    with pytest.raises(ApiError) as caught:
        check_scores(echoed, MAX_PROMPT_LOGPROBS // 4 + 1)
    assert caught.value.param == "logprobs"
    check_scores(CompletionRequest(model="m", prompt="x", logprobs=3), MAX_PROMPT_LOGPROBS)
    many = CompletionRequest(model="m", prompt="x", logprobs=3, echo=True, max_tokens=0, n=4)
    check_scores(many, MAX_PROMPT_LOGPROBS // 16)
    with pytest.raises(ApiError) as caught:
        check_scores(many, MAX_PROMPT_LOGPROBS // 16 + 1)
    assert caught.value.param == "logprobs"


def test_an_answers_logprobs_have_to_fit_into_it() -> None:
    most = MAX_ANSWER_LOGPROBS // (16 * 21)
    asked = {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 20, "n": 16}
    check_scores(parse(ChatRequest, asked), 5)
    check_scores(parse(ChatRequest, {**asked, "max_tokens": most}), 5)
    with pytest.raises(ApiError) as caught:
        check_scores(parse(ChatRequest, {**asked, "max_completion_tokens": most + 1}), 5)
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")
    check_scores(parse(ChatRequest, {**asked, "logprobs": False, "top_logprobs": 0, "max_tokens": most + 1}), 5)


@pytest.mark.parametrize("prompt", [None, 5, [], ["a", "b"], [-1], [True], [[1], [2]], [10**8], {"a": 1}])
async def test_prompts_are_refused(gateway: Process, house: House, acme: Actor, prompt: Any) -> None:
    status, error, _ = await call(
        gateway, "POST", "/v1/completions", acme, json={"model": house.base.name, "prompt": prompt}
    )
    assert (status, error["param"]) == (400, "prompt")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 100_000, b'{"a": NaN}']
)
async def test_bodies_that_are_not_json(gateway: Process, house: House, acme: Actor, data: bytes) -> None:
    status, error, _ = await call(gateway, "POST", CHAT, acme, data=data)
    assert (status, error["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("field", ["response_format", "tools", "metadata", "foo"])
async def test_deep_bodies_are_refused_before_admission(
    gateway: Process, house: House, acme: Actor, field: str
) -> None:
    body = {"model": house.base.name, "messages": MESSAGES, field: {"const": json.loads("[" * 900 + "]" * 900)}}
    status, error, _ = await call(gateway, "POST", CHAT, acme, json=body)
    assert (status, error["param"], error["code"]) == (400, field, "invalid_json")
    assert house.ledger(acme) == []


async def test_harmless_defaults_are_accepted(gateway: Process, house: House, acme: Actor) -> None:
    body = {
        "model": house.base.name,
        "messages": [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, *MESSAGES],
        "n": 1, "logprobs": False, "top_logprobs": None, "tools": None, "tool_choice": "none", "store": False,
        "response_format": {"type": "text"}, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto",
        "parallel_tool_calls": True, "max_completion_tokens": 2, "modalities": ["text"], "stop": None,
    }  # fmt: skip
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + CHAT, json=body, headers=acme.headers) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def test_too_large(gateway: Process, acme: Actor) -> None:
    from django.conf import settings

    big = b" " * (settings.MAX_BODY_BYTES + 1)

    async def chunks() -> Any:
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    for path in (CHAT, "/v1/completions", "/api/ws-tickets"):
        status, error, _ = await call(gateway, "POST", path, acme, data=big)
        assert (status, error["code"]) == (413, "request_too_large")
    status, error, _ = await call(gateway, "POST", CHAT, acme, data=chunks())
    assert (status, error["code"]) == (413, "request_too_large")


async def test_a_prompt_beyond_the_context(gateway: Process, house: House, acme: Actor) -> None:
    body = {"model": house.base.name, "messages": [{"role": "user", "content": "hello there " * 2000}]}
    status, error, _ = await call(gateway, "POST", CHAT, acme, json=body)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


async def test_what_can_never_fit_is_refused_before_it_is_tokenised(
    gateway: Process, house: House, acme: Actor
) -> None:
    """Four million characters took ten seconds and a gigabyte to encode; their length alone says that they are many."""
    for body, path, param in (
        ({"messages": [{"role": "user", "content": "a " * 1_900_000}]}, CHAT, "messages"),
        ({"prompt": "a " * 1_900_000}, "/v1/completions", "prompt"),
        ({"prompt": [5] * 100_000}, "/v1/completions", "prompt"),
    ):
        started = time.monotonic()
        status, error, _ = await call(gateway, "POST", path, acme, json={"model": house.base.name} | body)
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
        assert time.monotonic() - started < 2
    status, error, _ = await call(
        gateway, "POST", "/v1/completions", acme, json={"model": house.base.name, "prompt": "hello there " * 2000}
    )
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")


async def test_what_pages_send_is_refused_with_a_page(gateway: Process) -> None:
    from django.conf import settings

    async with aiohttp.ClientSession() as session:
        for path in ("/console/t/acme/adapters/-/upload", "/accounts/sign-in"):
            data = aiohttp.FormData({"name": "pirate"})
            data.add_field("content", b" " * (settings.MAX_BODY_BYTES + 1), filename="adapter.tar")
            async with session.post(gateway.url + path, data=data) as answer:
                page = await answer.text()
                assert (answer.status, answer.content_type) == (413, "text/html")
                assert "larger than the 4.2 MB" in page
                assert 'href="/console/"' in page
                assert "script-src" in answer.headers["content-security-policy"]
        async with session.get(gateway.url + "/admin/login/", headers={"Host": "evil.example"}) as answer:
            page = await answer.text()
            assert (answer.status, answer.content_type) == (400, "text/html")
            assert "does not answer to that Host" in page
            assert "evil.example" not in page


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models"])
async def test_a_host_that_is_not_ours(gateway: Process, acme: Actor, path: str) -> None:
    method = "POST" if path.endswith("completions") else "GET"
    status, error, _ = await call(gateway, method, path, acme, headers={"Host": "evil.example"})
    assert (status, error["code"]) == (400, "host_not_allowed")
    assert "DisallowedHost" not in gateway.log.read_text()


async def test_a_suspended_tenant(gateway: Process, house: House, acme: Actor) -> None:
    acme.tenant.state = "suspended"
    acme.tenant.save()
    status, error, _ = await call(gateway, "POST", CHAT, acme, json={"model": house.base.name, "messages": MESSAGES})
    assert (status, error["type"], error["code"]) == (403, "permission_error", "tenant_suspended")


async def test_a_revoked_key(gateway: Process, house: House, acme: Actor) -> None:
    from django.utils import timezone

    acme.key.revoked_at = timezone.now()
    acme.key.save()
    status, error, _ = await call(gateway, "POST", CHAT, acme, json={"model": house.base.name, "messages": MESSAGES})
    assert (status, error["code"]) == (401, "invalid_api_key")


# Strangers ------------------------------------------------------------------------------------------------------------


async def test_a_stranger_cannot_tell_an_adapter_from_nothing(
    gateway: Process, house: House, acme: Actor, stranger: Actor
) -> None:
    """By name, bare name, digest or guess, over every endpoint: the words for what does not exist."""
    digest = "ab" * 32
    name = house.adapter(acme, "pirate", digest)
    for model in (name, "pirate", digest, f"acme/{digest}", "acme/pirate@1", "../acme/pirate"):
        for path, body in (
            (CHAT, {"messages": MESSAGES}),
            (CHAT, {"messages": MESSAGES, "stream": True}),
            ("/v1/completions", {"prompt": "x"}),
        ):
            status, error, _ = await call(gateway, "POST", path, stranger, json={"model": model, **body})
            nothing = (await call(gateway, "POST", path, stranger, json={"model": "no/such", **body}))[1]
            assert status == 404
            assert json.dumps(error).replace(model, "no/such") == json.dumps(nothing)
    for model in (name, "acme%2Fpirate", "pirate", digest):
        status, error, _ = await call(gateway, "GET", f"/v1/models/{model}", stranger)
        assert (status, error["code"]) == (404, "model_not_found")
    assert house.ledger(stranger) == []
    assert house.ledger(acme) == []


async def test_lists_and_usage_are_the_callers_own(
    gateway: Process, house: House, acme: Actor, stranger: Actor
) -> None:
    name = house.adapter(acme, "pirate")
    async with aiohttp.ClientSession() as session:

        async def get(path: str, actor: Actor) -> Any:
            async with session.get(gateway.url + path, headers=actor.headers) as answer:
                assert answer.status == 200
                return await answer.json()

        owned = await get("/v1/models", acme)
        assert [model["id"] for model in owned["data"]] == sorted([name, house.base.name])
        assert await get(f"/v1/models/{name}", acme) in owned["data"]
        assert await get("/v1/models/acme%2Fpirate", acme) in owned["data"]
        assert [model["id"] for model in (await get("/v1/models", stranger))["data"]] == [house.base.name]
        body = {"model": name, "messages": MESSAGES, "max_tokens": 3}
        async with session.post(gateway.url + CHAT, json=body, headers=acme.headers) as answer:
            assert answer.status == 200
        (row,) = (await get("/api/usage", acme))["data"]
        assert (row["model"], row["requests"], row["completion_tokens"]) == (name, 1, 3)
        assert (await get("/api/usage?days=1", stranger))["data"] == []
    status, error, _ = await call(gateway, "GET", "/api/usage?days=0", acme)
    assert (status, error["param"]) == (400, "days")
    status, error, _ = await call(gateway, "GET", "/api/usage?days=x", acme)
    assert (status, error["param"]) == (400, "days")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/ws", "/console/live"])
async def test_two_hosts_are_none(gateway: Process, path: str) -> None:
    """What looks at the first must not be told another one by the last."""
    where = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = [f"GET {path} HTTP/1.1", f"Host: {where.netloc}", "Host: evil.example"]
    if path == "/v1/models":
        head.append("Connection: close")
    else:
        head += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Origin: {gateway.url}"]
        head.append("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    writer.write("\r\n".join([*head, "", ""]).encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_nobody_keeps_an_answer_of_the_api(gateway: Process, acme: Actor) -> None:
    async with aiohttp.ClientSession(headers=acme.headers) as session:
        for path in ("/v1/models", "/api/keys", "/api/nothing"):
            async with session.get(gateway.url + path) as answer:
                assert answer.headers["cache-control"] == "no-store"
