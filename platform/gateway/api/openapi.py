from __future__ import annotations

from typing import Any

from gateway.schemas import ChatRequest, CompletionRequest

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    "400": "The request is wrong; param names the field",
    "401": "No valid key",
    "403": "The account is suspended",
    "404": "No such model, or none that this key may use",
    "413": "The body is too large",
    "429": "A limit is reached; see Retry-After",
    "502": "The worker was lost",
    "503": "No worker is free; see Retry-After",
}
_SOCKET = (
    "WebSocket. Programs send `Authorization: Bearer <key>`; browsers the subprotocols `loraplex.v1` and "
    "`ticket.<ticket>`. In: `{type: request, id, body}` (a chat completion body), `{type: cancel, id}`, `{type: ping}`."
    " Out: `{type: chunk, id, data}`, then `{type: done, id}` or `{type: error, id, error}`; `{type: pong}`. Close "
    "codes: 1001 server going away, 1003 binary frame, 1009 frame too large, 4400 too many wrong frames, 4401 key "
    "no longer valid."
)


def with_streams(schema: Any) -> Any:
    """The document with the endpoints that are served ahead of Django, and the error shape on every operation."""
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    components["Error"] = _ERROR
    for path, model, summary in (
        ("/v1/chat/completions", ChatRequest, "Answer a conversation, streamed or whole"),
        ("/v1/completions", CompletionRequest, "Continue a text, streamed or whole"),
    ):
        body = model.model_json_schema(ref_template="#/components/schemas/{model}")
        components.update(body.pop("$defs", {}))
        components[model.__name__] = body
        schema["paths"][path] = {"post": _stream_operation(model.__name__, summary)}
    schema["paths"]["/v1/ws"] = {
        "get": {
            "operationId": "socket",
            "tags": ["websocket"],
            "summary": "Many streams over one WebSocket",
            "description": _SOCKET,
            "responses": {"101": {"description": "Switching protocols"}, **_error_responses("401", "403")},
            "security": [{"Key": []}],
        }
    }
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path.startswith(("/v1/models", "/api/")):
                operation["responses"] = {str(k): v for k, v in operation["responses"].items()}
                operation["responses"].update(_error_responses("400", "401", "404"))
    return schema


def _error_responses(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": _STATUSES[status], "content": content} for status in statuses}


def _stream_operation(schema_name: str, summary: str) -> dict[str, Any]:
    reference = {"schema": {"$ref": f"#/components/schemas/{schema_name}"}}
    answer = {
        "description": "OpenAI's object, or its chunks as server-sent events that end with `data: [DONE]`",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {
        "operationId": schema_name,
        "tags": ["inference"],
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": reference}},
        "responses": {"200": answer, **_error_responses(*_STATUSES)},
        "security": [{"Key": []}],
    }
