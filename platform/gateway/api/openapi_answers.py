"""What the OpenAPI document says of answers: an example of each main object, and the headers that all have."""

from __future__ import annotations

from typing import Any

from gateway.api_paths import is_api

_AT, _LATER = "2026-01-31T09:00:00Z", "2026-01-31T09:00:02Z"
_REQUEST = "0192f0c1-2a7b-7c3d-8e4f-5a6b7c8d9e0f"
_KEY = "5kQz81LmNb0c"
_FILE, _BATCH = "file-01890000000070008000000000000000", "batch_01890000000070008000000000000000"
_USED = {"prompt_tokens": 120, "cached_tokens": 96, "completion_tokens": 40, "cost": 310}

EXAMPLES: dict[str, dict[str, Any]] = {
    "Model": {"id": "acme/pirate", "object": "model", "created": 1769850000, "owned_by": "acme"},
    "File": {
        "id": _FILE,
        "object": "file",
        "bytes": 1204,
        "created_at": 1769850000,
        "expires_at": 1772442000,
        "filename": "requests.jsonl",
        "purpose": "batch",
        "status": "processed",
    },
    "Batch": {
        "id": _BATCH,
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "errors": None,
        "input_file_id": _FILE,
        "completion_window": "24h",
        "status": "in_progress",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 1769850000,
        "in_progress_at": 1769850002,
        "expires_at": 1769936400,
        **dict.fromkeys(
            ("finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at"), None
        ),
        "request_counts": {"total": 100, "completed": 12, "failed": 0},
        "usage": {
            "input_tokens": 1440,
            "input_tokens_details": {"cached_tokens": 1152},
            "output_tokens": 480,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 1920,
        },
        "metadata": {"run": "nightly"},
    },
    "Key": {
        "id": _KEY,
        "object": "api_key",
        "name": "laptop",
        "scope": "inference",
        "state": "active",
        "member": None,
        "models": ["acme/pirate"],
        "addresses": ["203.0.113.0/24"],
        "limits": {"requests_per_minute": 60},
        "created_at": _AT,
        "expires_at": None,
        "revoked_at": None,
        "last_used_at": _LATER,
        "predecessor": None,
        "successor": None,
    },
    "Member": {
        "id": "0192f0c1-3b8c-7d4e-9f50-6b7c8d9e0f1a",
        "object": "member",
        "username": "ann@example.org",
        "email": "ann@example.org",
        "role": "developer",
        "limits": {"tokens_per_day": 100000},
        "models": None,
        "created_at": _AT,
    },
    "Adapter": {
        "name": "pirate",
        "object": "adapter",
        "model": "acme/pirate",
        "base_model": "SmolLM2-135M-Instruct",
        "version": 2,
        "canary": 3,
        "canary_percent": 10,
        "created_at": _AT,
    },
    "Version": {
        "number": 2,
        "object": "adapter.version",
        "state": "ready",
        "digest": "9f86d081" * 8,
        "bytes": 1859926,
        "dtype": "float32",
        "max_rank": 8,
        "modules": [{"module": "model.layers.0.self_attn.q_proj", "rank": 8, "scaling": 2.0, "dora": False}],
        "report": None,
        "trial": {"state": "ready", "report": {}},
        "created_at": _AT,
        "checked_at": _LATER,
    },
    "Comparison": {
        "object": "adapter.comparison",
        "before": 1,
        "after": 2,
        "figures": [{"name": "largest rank", "before": 4, "after": 8}],
        "config": [{"name": "r", "before": 4, "after": 8}],
        "modules": [
            {
                "module": "model.layers.0.self_attn.q_proj",
                "before": {"rank": 4, "scaling": 4.0, "dora": False},
                "after": {"rank": 8, "scaling": 2.0, "dora": False},
            }
        ],
        "same_modules": 0,
    },
    "Request": {
        "id": _REQUEST,
        "object": "request",
        "state": "completed",
        "model": "acme/pirate",
        "base_model": "SmolLM2-135M-Instruct",
        "adapter_version": 2,
        "key": _KEY,
        "member": None,
        "admitted_at": _AT,
        "ended_at": _LATER,
        "duration_ms": 2000,
        "first_token_ms": 85,
        "queue_ms": 3,
        "prefill_ms": 70,
        "emitted_tokens": 40,
        "held": {"prompt_tokens": 120, "max_tokens": 64, "cost": 460},
        "billed": {"kind": "settle", **_USED},
        "price": {"input": 2000000, "cached_input": 500000, "output": 5000000},
        "finish_reason": "stop",
    },
    "Denial": {
        "id": f"2026013109-{_KEY}-rate_limit_exceeded-requests_per_minute-key",
        "object": "denial",
        "hour": _AT,
        "key": _KEY,
        "code": "rate_limit_exceeded",
        "limit": "requests_per_minute",
        "subject": "key",
        "count": 4,
        "last": {"at": _LATER, "request_id": _REQUEST, "model": "acme/pirate", "message": "Used up until 09:01:00."},
    },
    "Usage": {
        "tenant": "acme",
        "since": "2026-01-31T00:00:00Z",
        "until": "2026-02-01T00:00:00Z",
        "data": [
            {
                "at": "2026-01-31T00:00:00Z",
                "day": "2026-01-31",
                "model": "acme/pirate",
                **dict.fromkeys(("base_model", "adapter", "key", "member"), None),
                "requests": 1,
                "not_completed": 0,
                **_USED,
            }
        ],
    },
    "Standing": {
        "tenant": "acme",
        "data": [
            {
                "subject": "tenant",
                "id": "acme",
                "limits": {"requests_per_minute": {"limit": 600, "used": 1, "left": 599}},
                "month_tokens": 160,
                "month_cost": 310,
                "held_tokens": 0,
                "held_cost": 0,
            }
        ],
    },
    "Entry": {
        "id": "41",
        "at": _AT,
        "actor": {"kind": "key", "name": _KEY, "address": "203.0.113.7"},
        "action": "key.issued",
        "subject": "9tRw02XyZa1b",
        "before": {},
        "after": {"name": "laptop", "scope": "inference"},
    },
    "Webhook": {
        "id": "0192f0c1-4c9d-7e5f-a061-7c8d9e0f1a2b",
        "url": "https://example.org/loraplex",
        "description": "billing",
        "events": ["budget.soft_reached"],
        "state": "active",
        "failing_since": None,
        "previous_secret_until": None,
        "created_at": _AT,
    },
}
"""By the schema's name."""

_LIMITS = {
    "limit": ("The limit of {} of whoever has least left: the key, its member or the account", {"type": "integer"}),
    "remaining": ("What is left of {}", {"type": "integer"}),
    "reset": ("Until all of {} is there again, as `17ms`, `1.5s`, `6m0s`", {"type": "string"}),
}
_RATES = {
    f"x-ratelimit-{part}-{what}": {
        "description": f"{text.format(what)}; left out where nothing limits them",
        "schema": kind,
    }
    for what in ("requests", "tokens")
    for part, (text, kind) in _LIMITS.items()
}
HEADERS: dict[str, dict[str, Any]] = {
    "x-request-id": {
        "description": "Of each answer another; of an admitted request its id at `/api/requests`",
        "schema": {"type": "string", "format": "uuid"},
    },
    **_RATES,
    "retry-after": {
        "description": "Seconds after which the same may succeed",
        "schema": {"type": "integer", "minimum": 1},
    },
}
"""``components/headers``."""


def headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("x-request-id", *names)}


def describe(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Give the operation's own answers their headers and an example; those for errors are everybody's."""
    for status, answer in operation["responses"].items():
        if "$ref" in answer or status == "101" or not is_api(path):
            continue
        answer["headers"] = headers(*(_RATES if path.startswith("/v1/") else ())) | answer.get("headers", {})
        content = answer.get("content", {}).get("application/json")
        example = None if content is None or method != "get" else _example(content.get("schema", {}), schemas)
        if example is not None:
            content["example"] = example


def _example(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any] | None:
    name = schema.get("$ref", "").rpartition("/")[2]
    if name in EXAMPLES:
        return EXAMPLES[name]
    listed = schemas.get(name, {}).get("properties", {})
    item = EXAMPLES.get(listed.get("data", {}).get("items", {}).get("$ref", "").rpartition("/")[2])
    if item is None:
        return None
    page: dict[str, Any] = {"object": "list", "data": [item]}
    if "has_more" in listed:
        ends = item.get("id") or item.get("name") or str(item.get("number"))
        page |= {"first_id": ends, "last_id": ends, "has_more": False}
    return page
