"""Requests to a worker, and their answers taken apart."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import aiohttp

from tests.inference.front.actors import TinyWorker

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


async def post(
    session: aiohttp.ClientSession, worker: TinyWorker, path: str, body: dict[str, Any], **grant: Any
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {worker.signer.token(**grant)}"}
    body = {"model": worker.model, **body}
    async with session.post(worker.url + path, json=body, headers=headers) as response:
        text = await response.text()
        if response.content_type != "text/event-stream":
            return response.status, json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]", lines[-1]
    return response.status, [json.loads(line) for line in lines[:-1]]


def gathered(events: list[Any]) -> dict[int, dict[str, Any]]:
    """By choice: all of a stream's text, ids, log-probabilities, and how it ended."""
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: {"text": "", "ids": [], "logprobs": [], "ends": []})
    for event in events:
        for choice in event["choices"]:
            found = choices[choice["index"]]
            found["text"] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            found["ids"] += choice.get("token_ids", [])
            if choice.get("logprobs"):
                found["logprobs"].append(choice["logprobs"])
            if choice["finish_reason"]:
                found["ends"].append(choice["finish_reason"])
    return dict(choices)


def merged(parts: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """The pieces of a stream's log-probabilities as a whole answer has them."""
    keys = parts[0] if parts else {}
    return {key: [value for part in parts for value in part[key] or []] for key in keys}
