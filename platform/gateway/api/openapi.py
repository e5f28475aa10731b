"""One OpenAPI document of everything: ninja's, the streams', and what all operations have in common."""

from __future__ import annotations

import re
from typing import Any

from gateway.api.mutations import HEADER, MOST_KEY, REPLAYED
from gateway.api.openapi_answers import HEADERS, describe, headers
from gateway.api.openapi_streams import add_streams

SERVERS = [{"url": "/", "description": "This installation"}]
TAGS = {
    "inference": "Answers: OpenAI's endpoints, streamed or whole.",
    "models": "What a key may call.",
    "websocket": "Many requests on one connection.",
    "files": "Inputs and outputs of batches, as OpenAI has them.",
    "batches": "Up to 50,000 requests, done when there is room.",
    "adapters": "LoRA adapters: uploads, versions, shares.",
    "releases": "Which version of an adapter answers: promotion, canary, rollback.",
    "keys": "The account's API keys.",
    "members": "People of the account and their roles.",
    "invitations": "People who are asked to join.",
    "usage": "What was used and what it cost.",
    "requests": "Each admitted request: held, billed, how it ended.",
    "denials": "Why requests were refused.",
    "payloads": "Prompts and answers, stored only where an owner turned it on.",
    "limits": "What is left of each limit.",
    "webhooks": "Addresses that are told of events; Standard Webhooks sign them.",
    "audit": "Who changed what.",
    "health": "Whether this process takes requests.",
}
_SCHEMES = {
    "inference": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "lpx_live_…",
        "description": "A tenant's key of scope `inference`: generates, and manages nothing.",
    },
    "manage": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "lpx_live_…",
        "description": "A tenant's key of scope `manage`: acts with its member's role, without a member as an owner.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "sessionid",
        "description": "A signed-in member. What changes something sends the header `X-CSRFToken` too; who belongs to "
        "several accounts names one in `X-Tenant`.",
    },
    "operator": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "lpx_operator_…",
        "description": "An operator's key: every tenant, no inference.",
    },
}
_DOORS = {
    "Key": ("inference",),
    "AnyKey": ("inference", "manage"),
    "UsageKey": ("inference", "manage", "session"),
    "TenantKey": ("manage", "session"),
    "OperatorBearer": ("operator", "session"),
    "ActingOperator": ("operator", "session"),
}
"""Each class of authentication, and which of the schemes opens it."""

_ERRORS = {
    "400": "The request is wrong; `param` names the field",
    "401": "No valid key",
    "403": "The key's kind, its holder's role or the account's state does not allow it",
    "404": "No such object, or somebody else's",
    "408": "The body did not arrive in time",
    "409": f"The object's state does not allow it, or the {HEADER} was used for another request",
    "413": "The body is too large",
    "429": "A limit is reached; see Retry-After",
    "500": "The server had an error",
    "502": "The worker was lost",
    "503": "The service cannot take this now; see Retry-After",
}
_ALWAYS = ("400", "401", "403", "404", "500", "503")
_CHANGING = ("408", "409", "413")
_ANSWERING = ("429", "502")
_WAITING = ("429", "503")
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
                "param": {"type": ["string", "null"], "description": "The field at fault, as the request names it"},
                "code": {"type": ["string", "null"], "description": "What a program may tell errors apart by"},
            },
        }
    },
    "examples": [
        {
            "error": {
                "message": "events has to list types of events, or * alone.",
                "type": "invalid_request_error",
                "param": "events",
                "code": "invalid_value",
            }
        }
    ],
}
_ONCE = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": f"With it the change is made once: a repetition gets the first answer again, marked `{REPLAYED}: "
    "true`, without what is shown only once. Good for a day.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MOST_KEY, "pattern": "^[ -~]+$"},
    "example": "6f9f2d0c-1f6b-4f0e-9d57-0f3f3a1b2c4d",
}
_NOT_ONCE = {"/v1/chat/completions", "/v1/completions", "/api/ws-tickets"}
"""Nothing lasting is made there."""


def complete(schema: dict[str, Any]) -> dict[str, Any]:
    """ninja's document, made into the document of all endpoints."""
    components = schema.setdefault("components", {})
    components.setdefault("schemas", {})["Error"] = _ERROR
    add_streams(schema)
    components["securitySchemes"] = _SCHEMES
    components["parameters"] = {"IdempotencyKey": _ONCE}
    components["headers"] = HEADERS
    _without_null_defaults(components["schemas"])
    components["responses"] = {status: _error(status, text) for status, text in _ERRORS.items()}
    schema["servers"] = SERVERS
    found: set[str] = set()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
            describe(path, method, operation, components["schemas"])
            found.update(operation["tags"])
    schema["tags"] = [{"name": tag, "description": _about(tag)} for tag in sorted(found)]
    return schema


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    doors = [name for requirement in operation.get("security", ()) for name in requirement]
    if doors:
        operation["security"] = [{scheme: []} for door in doors for scheme in _DOORS[door]]
    else:
        operation["security"] = []
    operation["operationId"] = _name(operation["operationId"])
    _without_default_body(operation)
    changing = method != "get"
    if changing and path not in _NOT_ONCE:
        reference = {"$ref": "#/components/parameters/IdempotencyKey"}
        operation["parameters"] = [*operation.get("parameters", ()), reference]
    statuses = {*_ALWAYS, *(_CHANGING if changing else ())} if doors else {"400", "500"}
    if path.startswith("/v1/"):
        statuses.update(_ANSWERING)
    responses = {str(status): response for status, response in operation["responses"].items()}
    refused = {status: {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}
    operation["responses"] = refused | responses


def _name(operation_id: str) -> str:
    """Without our packages. What operators do for one tenant is called ``operator_…`` already."""
    return re.sub(r"^gateway_api_(operator_)?", lambda found: "platform_" if found[1] else "", operation_id)


def _without_null_defaults(found: Any) -> None:
    """``"default": null`` says that a field may be left out, as ``required`` does, and contradicts the field's type."""
    if isinstance(found, list):
        for item in found:
            _without_null_defaults(item)
    elif isinstance(found, dict):
        if found.get("default", "") is None:
            del found["default"]
        for name, item in found.items():
            if name not in ("example", "examples"):
                _without_null_defaults(item)


def _without_default_body(operation: dict[str, Any]) -> None:
    """A body that may be left out is described as any other: its fields say their own defaults."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        if set(content.get("schema", {})) == {"allOf", "default"}:
            (content["schema"],) = content["schema"]["allOf"]


def _error(status: str, text: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": text,
        "headers": headers(*(("retry-after",) if status in _WAITING else ())),
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status == "401":
        answer["headers"]["www-authenticate"] = {"schema": {"type": "string"}}
    return answer


def _about(tag: str) -> str:
    if not tag.startswith("operators: "):
        return TAGS.get(tag, tag.capitalize())
    resource = tag.removeprefix("operators: ")
    return f"For those who run the platform: {resource}."
