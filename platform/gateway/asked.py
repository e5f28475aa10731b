from __future__ import annotations

from collections.abc import Iterator

import orjson

from gateway.schemas import AnyRequest, ChatRequest


def asked(request: AnyRequest) -> Iterator[tuple[str, str]]:
    """Whose words a request brings, and the words: what is stored of it where its tenant wants that."""
    if not isinstance(request, ChatRequest):
        prompt = request.prompt
        yield "prompt", prompt if isinstance(prompt, str) else orjson.dumps(prompt).decode()
        return
    for message in request.messages:
        calls = "" if message.tool_calls is None else orjson.dumps(message.tool_calls).decode()
        yield message.role, "\n".join(text for text in (message.content, calls) if text)
