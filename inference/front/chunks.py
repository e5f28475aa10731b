"""The bytes of answers: OpenAI's objects for completions and chats, streamed and whole."""

from __future__ import annotations

import time
from typing import Any

import orjson

from inference.protocol import Delta, Usage

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Writes one request's events. What every chunk has in common is serialised once."""

    def __init__(self, *, request_id: str, model: str, chat: bool, token_ids: bool, include_usage: bool) -> None:
        self._chat, self._token_ids, self._include_usage = chat, token_ids, include_usage
        self._id = ("chatcmpl-" if chat else "cmpl-") + request_id
        self._model = model
        self._created = int(time.time())
        head = {"id": self._id, "object": self._object(streamed=True), "created": self._created, "model": model}
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def first(self) -> bytes:
        """What goes before the first token: a chat announces the role."""
        if not self._chat:
            return b""
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}'
        return self._head + choice + self._tail

    def delta(self, delta: Delta) -> bytes:
        choice = b'{"index":0,' + (
            b'"delta":{"content":' + orjson.dumps(delta.text) + b"}"
            if self._chat
            else b'"text":' + orjson.dumps(delta.text) + b',"logprobs":null'
        )
        if self._token_ids:
            choice += b',"token_ids":' + orjson.dumps(delta.token_ids)
        choice += b',"finish_reason":' + orjson.dumps(delta.finish_reason) + b"}"
        return self._head + choice + self._tail

    def last(self, usage: Usage) -> bytes:
        """After the last token."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + orjson.dumps(usage.openai()) + b"}\n\n" + DONE

    def whole(self, text: str, token_ids: list[int], finish_reason: str, usage: Usage) -> bytes:
        """The answer of a request that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        if self._token_ids:
            choice["token_ids"] = token_ids
        return orjson.dumps(
            {
                "id": self._id,
                "object": self._object(streamed=False),
                "created": self._created,
                "model": self._model,
                "choices": [choice],
                "usage": usage.openai(),
            }
        )

    def _object(self, *, streamed: bool) -> str:
        if not self._chat:
            return "text_completion"
        return "chat.completion.chunk" if streamed else "chat.completion"
