from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import orjson

from gateway.schemas import AnyRequest, ChatRequest
from inference.protocol import Delta, Usage
from tenants.access import ServedModel


class Chunks:
    """OpenAI's objects for one request, as JSON bytes: chunks of a stream, or the one whole answer.

    The parts that stay the same are encoded once: building a chunk is then one dump of its text and a join.
    """

    def __init__(self, request_id: UUID, request: AnyRequest, model: ServedModel) -> None:
        self._chat = isinstance(request, ChatRequest)
        self._include_usage = request.include_usage
        kind = "chatcmpl" if self._chat else "cmpl"
        self._head: dict[str, Any] = {
            "id": f"{kind}-{request_id.hex}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model.id,
            "system_fingerprint": f"fp_{model.fingerprint[:12]}",
        }
        head = orjson.dumps(self._head)[:-1] + b',"choices":['
        end = b'],"usage":null}' if self._include_usage else b"]}"
        self._usage_head = head
        if self._chat:
            self._before = head + b'{"index":0,"delta":{"content":'
            self._after = b'},"logprobs":null,"finish_reason":null}' + end
            self._finish = (head + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":', b"}" + end)
            role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
            self._role: bytes | None = head + role + end
        else:
            self._before = head + b'{"index":0,"text":'
            self._after = b',"logprobs":null,"finish_reason":null}' + end
            self._finish = (head + b'{"index":0,"text":"","logprobs":null,"finish_reason":', b"}" + end)
            self._role = None

    def first(self) -> list[bytes]:
        """What a stream opens with: the role, in a chat."""
        return [] if self._role is None else [self._role]

    def of(self, delta: Delta) -> list[bytes]:
        """Chunks for one delta: none while its text is held back, two when text and the end come together."""
        chunks = []
        if delta.text:
            chunks.append(self._before + orjson.dumps(delta.text) + self._after)
        if delta.finish_reason is not None:
            before, after = self._finish
            chunks.append(before + orjson.dumps(delta.finish_reason) + after)
        return chunks

    def last(self, usage: Usage) -> list[bytes]:
        """The usage chunk, where the client asked for it."""
        if not self._include_usage:
            return []
        return [self._usage_head + b'],"usage":' + orjson.dumps(usage.openai()) + b"}"]

    def whole(self, text: str, finish_reason: str, usage: Usage) -> bytes:
        """The answer of a request that does not stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
            kind = "chat.completion"
        else:
            choice["text"] = text
            kind = "text_completion"
        return orjson.dumps({**self._head, "object": kind, "choices": [choice], "usage": usage.openai()})
