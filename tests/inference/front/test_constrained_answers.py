"""Constrained answers over HTTP: the fields in OpenAI's and vLLM's words, and what is refused before a stream."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import jsonschema
import pytest

from tests.inference.front.actors import TinyWorker
from tests.inference.front.answers import CHAT, COMPLETIONS, gathered, post

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
MESSAGES = [{"role": "user", "content": "Who?"}]


def _schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": fields}}


async def test_a_chat_in_a_schema(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    body = {"messages": MESSAGES, "response_format": FORMAT, "max_tokens": 80, "temperature": 1.3, "seed": 3}
    status, answer = await post(session, tiny_worker, CHAT, body)
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    _, events = await post(session, tiny_worker, CHAT, {**body, "stream": True})
    assert gathered(events)[0]["text"] == choice["message"]["content"]
    _, many = await post(session, tiny_worker, CHAT, {**body, "n": 3})
    for choice in many["choices"]:
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


@pytest.mark.parametrize(
    ("outputs", "check"),
    [
        ({"json": SCHEMA}, lambda text: jsonschema.validate(json.loads(text), SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, lambda text: jsonschema.validate(json.loads(text), SCHEMA)),
        ({"regex": "[0-9]{3}"}, lambda text: int(text) + 1),
        ({"choice": ["one", "two"]}, ["one", "two"].index),
        ({"grammar": 'start: "a" | "b" "c"'}, ["a", "bc"].index),
    ],
)
async def test_structured_outputs(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, outputs: Any, check: Any
) -> None:
    body = {"prompt": "Say", "structured_outputs": outputs, "max_tokens": 80, "temperature": 1.3, "logprobs": 1}
    body["seed"] = 3  # a drawn text may be too long
    status, answer = await post(session, tiny_worker, COMPLETIONS, body)
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    check(choice["text"])
    # The model's own distribution: what the constraint forbade has its probability too.
    assert any(value < -0.5 for value in choice["logprobs"]["token_logprobs"])


async def test_a_stop_string_ends_a_constrained_answer(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    body = {"prompt": "Say", "structured_outputs": {"regex": "a{5}b{5}"}, "stop": "ab", "max_tokens": 40}
    _, answer = await post(session, tiny_worker, COMPLETIONS, body)
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("aaaa", "stop")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (_schema(schema={}), "response_format.json_schema.name"),
        (_schema(name="a"), "response_format.json_schema.schema"),
        (_schema(name="a", schema={"typ": 1}), "response_format.json_schema.schema"),
        (_schema(name="a", schema={}, strict=1), "response_format.json_schema.strict"),
        ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": '{"not": {}}'}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_json": {}}, "guided_json"),
        ({"guided_regex": "a"}, "guided_regex"),
    ],
)  # fmt: skip
async def test_what_is_refused(
    tiny_worker: TinyWorker, session: aiohttp.ClientSession, fields: dict[str, Any], param: str, stream: bool
) -> None:
    status, answer = await post(session, tiny_worker, CHAT, {"messages": MESSAGES, "stream": stream, **fields})
    assert (status, answer["error"]["param"]) == (400, param), answer


async def test_former_names_say_the_present_one(tiny_worker: TinyWorker, session: aiohttp.ClientSession) -> None:
    _, answer = await post(session, tiny_worker, COMPLETIONS, {"prompt": "a", "guided_grammar": "start: x"})
    assert answer["error"]["message"] == "guided_grammar is now called structured_outputs.grammar"
