"""What the OpenAPI document says of the endpoints that are served ahead of Django, where ninja does not see them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from gateway.schemas import ChatRequest, CompletionRequest

_MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
_EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "ChatRequest": [{"model": "acme/pirate", "messages": _MESSAGES, "max_tokens": 64, "stream": True}],
    "CompletionRequest": [{"model": "SmolLM2-135M-Instruct", "prompt": "Once upon a time", "max_tokens": 64}],
}
_FINISH = {"type": ["string", "null"], "enum": ["stop", "length", "tool_calls", None]}
_COUNT = {"type": "integer", "minimum": 0}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        "prompt_tokens": {**_COUNT, "description": "cached ones included"},
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": _COUNT}},
    },
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}


def _answer(kind: str, **choice: Any) -> dict[str, Any]:
    """OpenAI's object with these fields of a choice besides its index and its end."""
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": kind},
            "created": {"type": "integer", "description": "Unix seconds"},
            "model": {"type": "string"},
            "system_fingerprint": {"type": ["string", "null"]},
            "choices": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["index", "finish_reason", *choice],
                    "properties": {"index": _COUNT, "finish_reason": _FINISH, **choice},
                },
            },
            "usage": _USAGE,
        },
    }


# No type: what reads a document takes it for the stream's, or for each event's.
_EVENTS = {
    "description": (
        "Server-sent events: `data: ` and a chunk of OpenAI's as JSON, then `data: [DONE]`; `: keepalive` in between. "
        'An error in mid-stream is an event `{"error": …}`, after which nothing comes.'
    ),
    "examples": ['data: {"id": "…", "object": "chat.completion.chunk", "choices": […]}\n\ndata: [DONE]\n\n'],
}
_INFERENCE = (
    ("/v1/chat/completions", ChatRequest, "create_chat_completion", "ChatCompletion", "Answer a conversation"),
    ("/v1/completions", CompletionRequest, "create_completion", "Completion", "Continue a text"),
)
_SOCKET = (
    "WebSocket. Programs send `Authorization: Bearer <key>`; browsers the subprotocols `loraplex.v1` and "
    "`ticket.<ticket>`. In: `{type: request, id, body}` (a chat completion body), `{type: cancel, id}`, "
    "`{type: ping}`; out: `{type: chunk, id, data}`, then `{type: done, id}` or `{type: error, id, error}`, "
    "with `retry_after_ms` where trying again may help; "
    "`{type: pong}`. All frames, how a lost connection is resumed, and the close codes: docs/api.md."
)
FILE_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "additionalProperties": False,
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string", "enum": ["batch"]},
                    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                },
                "examples": [{"purpose": "batch", "file": "the lines of requests.jsonl"}],
            }
        }
    },
}
_UPLOAD = {
    "operationId": "upload_file",
    "tags": ["files"],
    "summary": "Upload a batch's input, as a form",
    "requestBody": FILE_FORM,
    "responses": {
        "200": {
            "description": "The file",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/File"}}},
        }
    },
    "security": [{"Key": []}],
}


def add_streams(schema: dict[str, Any]) -> None:
    """Add their operations and what these refer to."""
    components = schema["components"]["schemas"]
    components["ChatCompletion"] = _answer("chat.completion", message=_MESSAGE)
    components["Completion"] = _answer("text_completion", text={"type": "string"})
    for path, model, name, answer, summary in _INFERENCE:
        body = model.model_json_schema(ref_template="#/components/schemas/{model}")
        components.update(body.pop("$defs", {}))
        components[model.__name__] = body | {"examples": _EXAMPLES[model.__name__]}
        schema["paths"][path] = {"post": _inference(name, model.__name__, answer, summary)}
    schema["paths"]["/v1/files"]["post"] = deepcopy(_UPLOAD)
    schema["paths"]["/v1/ws"] = {
        "get": {
            "operationId": "open_socket",
            "tags": ["websocket"],
            "summary": "Many streams over one WebSocket",
            "description": _SOCKET,
            "responses": {"101": {"description": "Switching protocols"}},
            "security": [{"Key": []}],
        }
    }


def _inference(name: str, body: str, answer: str, summary: str) -> dict[str, Any]:
    content = {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{answer}"}},
        "text/event-stream": {"schema": _EVENTS},
    }
    return {
        "operationId": name,
        "tags": ["inference"],
        "summary": f"{summary}, streamed or whole",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}},
        },
        "responses": {"200": {"description": "The answer, or with `stream` its parts", "content": content}},
        "security": [{"Key": []}],
    }
