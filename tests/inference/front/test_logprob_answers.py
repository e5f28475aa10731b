"""Log-probabilities, prompt log-probabilities and echo through the real worker."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.client import WorkerClient
from inference.front.bodies import check_scores, generate_body
from inference.front.errors import ApiError
from inference.prompt import PromptRenderer
from inference.protocol import MAX_ANSWER_LOGPROBS, MAX_PROMPT_LOGPROBS, TokenLogprob, joined
from tests.inference.front.actors import TinyWorker
from tests.inference.front.answers import CHAT, COMPLETIONS, gathered, merged, post

TEXT = "Größe: two tenants, 東京 and more of it than one block"
MESSAGES = [{"role": "user", "content": "Ahoy"}]


@pytest.fixture(scope="module")
def renderer(tiny_model_dir: Path) -> PromptRenderer:
    return PromptRenderer.load(tiny_model_dir)


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)


def distributions(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].double().log_softmax(dim=-1)


async def test_a_completions_logprobs_are_transformers(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, renderer: PromptRenderer, model: Any
) -> None:
    body = {"prompt": TEXT, "max_tokens": 12, "logprobs": 3, "seed": 5, "return_token_ids": True, "ignore_eos": True}
    status, answer = await post(session, tiny_worker, COMPLETIONS, body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    prompt, ids = renderer.encode(TEXT, add_special_tokens=True), choice["token_ids"]
    expected = distributions(model, prompt + ids)[len(prompt) - 1 :]
    found = choice["logprobs"]
    assert [len(values) for values in found.values()] == [12] * 4
    for place, token in enumerate(ids):
        assert found["token_logprobs"][place] == pytest.approx(float(expected[place][token]), abs=1e-4)
        best = expected[place].topk(3)
        top = found["top_logprobs"][place]
        assert sorted(top.values(), reverse=True)[:3] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert found["tokens"][place] in top
        assert len(top) <= 4
        at = found["text_offset"][place]
        if "bytes:" not in found["tokens"][place] and token not in renderer.eos_token_ids and token > 2:
            assert choice["text"][at:].startswith(found["tokens"][place])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": TEXT, "logprobs": 2}),
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    ],
)
async def test_streamed_and_whole_logprobs_agree(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, path: str, fields: dict[str, Any]
) -> None:
    body = {**fields, "max_tokens": 30, "seed": 8, "temperature": 0.9}
    _, whole = await post(session, tiny_worker, path, body)
    _, events = await post(session, tiny_worker, path, {**body, "stream": True})
    streamed = gathered(events)[0]
    logprobs = whole["choices"][0]["logprobs"]
    parts = merged(streamed["logprobs"])
    if path == CHAT:
        assert [entry["bytes"] for entry in parts["content"]] == [entry["bytes"] for entry in logprobs["content"]]
        parts, logprobs = ({"token_logprobs": [entry["logprob"] for entry in p["content"]]} for p in (parts, logprobs))
    else:
        assert (parts["tokens"], parts["text_offset"]) == (logprobs["tokens"], logprobs["text_offset"])
        assert [list(top) for top in parts["top_logprobs"]] == [list(top) for top in logprobs["top_logprobs"]]
    # The second run found the prompt in the cache: the same numbers summed in another order.
    assert parts["token_logprobs"] == pytest.approx(logprobs["token_logprobs"], abs=1e-5)
    assert streamed["ends"] == [whole["choices"][0]["finish_reason"]]


async def test_a_chats_bytes_spell_its_message(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    no_control = {str(token): -100 for token in range(3)}
    body = {"messages": MESSAGES, "max_tokens": 60, "logprobs": True, "top_logprobs": 20, "seed": 3}
    body["logit_bias"] = no_control
    _, answer = await post(session, tiny_worker, CHAT, body)
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    spelt = bytes(byte for token in content for byte in token["bytes"])
    assert spelt.decode(errors="replace") == choice["message"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"] == 60
    for token in content:
        assert len(token["top_logprobs"]) == 20
        values = [other["logprob"] for other in token["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert token["logprob"] <= values[0] + 1e-6


async def test_the_end_token_is_in_a_completion_and_not_in_a_chat(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession
) -> None:
    bias = {"max_tokens": 5, "logit_bias": {"2": 100}}
    _, answer = await post(session, tiny_worker, COMPLETIONS, {"prompt": "a", "logprobs": 0, **bias})
    assert answer["choices"][0]["logprobs"]["tokens"] == ["<|im_end|>"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["logprobs"]["token_logprobs"][0] < -0.01, "the model's own, before the bias"
    _, answer = await post(session, tiny_worker, CHAT, {"messages": MESSAGES, "logprobs": True, **bias})
    assert (answer["choices"][0]["logprobs"], answer["usage"]["completion_tokens"]) == (None, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_takes_its_tokens_logprobs_with_it(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, stream: bool
) -> None:
    body = {
        "prompt": TEXT,
        "max_tokens": 40,
        "logprobs": 1,
        "seed": 11,
        "logit_bias": {"0": -100, "1": -100, "2": -100},
    }
    _, free = await post(session, tiny_worker, COMPLETIONS, body)
    whole = free["choices"][0]
    offsets = whole["logprobs"]["text_offset"]
    stop = whole["text"][offsets[20] + 1 : offsets[20] + 4] or whole["text"][-3:]
    cut = whole["text"].index(stop)
    status, answer = await post(session, tiny_worker, COMPLETIONS, {**body, "stop": stop, "stream": stream})
    assert status == 200, answer
    if stream:
        found = gathered(answer)[0]
        text, logprobs, ends = found["text"], merged(found["logprobs"]), found["ends"]
    else:
        (choice,) = answer["choices"]
        text, logprobs, ends = choice["text"], choice["logprobs"], [choice["finish_reason"]]
    kept = sum(offset < cut for offset in offsets)
    assert (text, ends) == (whole["text"][:cut], ["stop"])
    assert logprobs["token_logprobs"] == pytest.approx(whole["logprobs"]["token_logprobs"][:kept], abs=1e-5)
    assert logprobs["text_offset"] == offsets[:kept]


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("as_ids", [False, True])
async def test_echo_scores_the_prompt(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, renderer: PromptRenderer, model: Any,
    max_tokens: int, as_ids: bool,
) -> None:  # fmt: skip
    ids = renderer.encode(TEXT, add_special_tokens=True)
    body = {"prompt": ids if as_ids else TEXT, "max_tokens": max_tokens, "echo": True, "logprobs": 2, "temperature": 0}
    status, answer = await post(session, tiny_worker, COMPLETIONS, body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert choice["text"].startswith(TEXT)
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert choice["finish_reason"] == "length"
    found = choice["logprobs"]
    assert [len(values) for values in found.values()] == [len(ids) + max_tokens] * 4
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    expected = distributions(model, ids)
    for place, token in enumerate(ids[1:]):
        assert found["token_logprobs"][place + 1] == pytest.approx(float(expected[place][token]), abs=1e-4)
    if max_tokens:
        assert found["text_offset"][len(ids)] == len(TEXT)
        assert choice["text"] != TEXT


async def test_echo_without_logprobs_and_streamed(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    body = {"prompt": TEXT, "max_tokens": 4, "echo": True, "seed": 1}
    _, whole = await post(session, tiny_worker, COMPLETIONS, body)
    assert whole["choices"][0]["logprobs"] is None
    _, events = await post(session, tiny_worker, COMPLETIONS, {**body, "stream": True, "logprobs": 1})
    assert gathered(events)[0]["text"] == whole["choices"][0]["text"]
    assert sum(len(part["tokens"]) for part in gathered(events)[0]["logprobs"]) > 4
    body = {**body, "prompt": "", "stream": False}
    assert (await post(session, tiny_worker, COMPLETIONS, body))[0] == 400


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_prompt_logprobs_are_asked_for_by_name(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, renderer: PromptRenderer, model: Any, path: str
) -> None:
    ids = renderer.encode_chat(MESSAGES) if path == CHAT else renderer.encode(TEXT, add_special_tokens=True)
    fields: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": TEXT}
    status, answer = await post(session, tiny_worker, path, {**fields, "max_tokens": 2, "prompt_logprobs": 1, "n": 2})
    assert status == 200, answer
    expected = distributions(model, ids)
    found = [answer["prompt_logprobs"]] if path == CHAT else [c["prompt_logprobs"] for c in answer["choices"]]
    for prompt in found:
        assert len(prompt) == len(ids)
        assert prompt[0] is None
        for place, token in enumerate(ids[1:]):
            assert prompt[place + 1][str(token)]["logprob"] == pytest.approx(float(expected[place][token]), abs=1e-4)
            best = next(entry for entry in prompt[place + 1].values() if entry["rank"] == 1)
            assert best["logprob"] == pytest.approx(float(expected[place].max()), abs=1e-4)
    assert all(choice["logprobs"] is None for choice in answer["choices"])


async def test_scoring_a_prompt_reads_no_cache_and_fills_it(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, renderer: PromptRenderer
) -> None:
    """Cached positions have nothing to score; the prompt's own blocks may serve those that come after."""
    prompt = [7 + place % 90 for place in range(64)]
    body = {"prompt": prompt, "max_tokens": 1}
    await post(session, tiny_worker, COMPLETIONS, body)
    scored = {**body, "prompt_logprobs": 0}
    _, answer = await post(session, tiny_worker, COMPLETIONS, scored)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len(answer["choices"][0]["prompt_logprobs"]) == 64
    _, answer = await post(session, tiny_worker, COMPLETIONS, body)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 48


async def test_a_logprob_that_json_cannot_say_is_not_said(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession
) -> None:
    _, answer = await post(session, tiny_worker, COMPLETIONS, {"prompt": "a", "max_tokens": 20, "logprobs": 20})
    values = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert all(isinstance(value, float) and math.isfinite(value) for value in values)


async def test_contradictions_name_their_field(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    for path, fields, param in (
        (CHAT, {"top_logprobs": 1}, "top_logprobs"),
        (CHAT, {"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"echo": True}, "echo"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, "prompt"),
    ):
        base: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "a"}
        status, answer = await post(session, tiny_worker, path, {**base, "max_tokens": 2, **fields})
        assert (status, answer["error"]["param"]) == (400, param), answer


def test_a_prompts_logprobs_fit_into_one_answer() -> None:
    body = generate_body(b'{"model": "m", "prompt": [1], "prompt_logprobs": 20}', chat=False)
    check_scores(body, MAX_PROMPT_LOGPROBS // 21)
    with pytest.raises(ApiError) as caught:
        check_scores(body, MAX_PROMPT_LOGPROBS // 21 + 1)
    assert (caught.value.status, caught.value.param) == (400, "prompt_logprobs")
    body = generate_body(b'{"model": "m", "prompt": [1], "logprobs": 0, "echo": true}', chat=False)
    with pytest.raises(ApiError) as caught:
        check_scores(body, MAX_PROMPT_LOGPROBS + 1)
    assert caught.value.param == "logprobs"
    body = generate_body(b'{"model": "m", "prompt": [1], "logprobs": 20, "echo": true, "n": 16}', chat=False)
    check_scores(body, MAX_PROMPT_LOGPROBS // (21 * 16))
    with pytest.raises(ApiError) as caught:
        check_scores(body, MAX_PROMPT_LOGPROBS // (21 * 16) + 1)
    assert caught.value.param == "logprobs"


def test_an_answers_logprobs_fit_into_it() -> None:
    asked = '{"model": "m", "prompt": [1], "logprobs": 20, "n": 16, "max_tokens": %d}'
    most = MAX_ANSWER_LOGPROBS // (21 * 16)
    check_scores(generate_body((asked % most).encode(), chat=False), 1)
    with pytest.raises(ApiError) as caught:
        check_scores(generate_body((asked % (most + 1)).encode(), chat=False), 1)
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


async def test_a_client_reads_back_what_the_core_found(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, renderer: PromptRenderer, model: Any
) -> None:
    ids = renderer.encode(TEXT, add_special_tokens=True)
    body = {"model": tiny_worker.model, "prompt": ids, "max_tokens": 6, "logprobs": 4, "prompt_logprobs": 2, "n": 2}
    client = WorkerClient(tiny_worker.url, session)
    deltas = [delta async for delta in client.generate(body, tiny_worker.signer.token())]
    for index in (0, 1):
        whole = joined([delta for delta in deltas if delta.index == index and not delta.usage])
        assert whole.logprobs is not None
        assert [entry.token for entry in whole.logprobs] == list(whole.token_ids)
        assert len(whole.offsets or ()) == len(whole.token_ids)
        expected = distributions(model, [*ids, *whole.token_ids])
        for place, entry in enumerate(whole.logprobs, start=len(ids) - 1):
            check(entry, expected[place], 4)
        assert whole.prompt_logprobs is not None
        assert [entry.token for entry in whole.prompt_logprobs] == ids[1:]
        for place, entry in enumerate(whole.prompt_logprobs):
            check(entry, expected[place], 2)


def check(entry: TokenLogprob, distribution: torch.Tensor, top: int) -> None:
    best = distribution.topk(top)
    assert entry.logprob == pytest.approx(float(distribution[entry.token]), abs=1e-4)
    assert [token for token, _ in entry.top] == best.indices.tolist()
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
