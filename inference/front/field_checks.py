"""What fields may be that only the worker looks at, or only here; the others are in :mod:`inference.request_fields`."""

from __future__ import annotations

from typing import Any

from inference.front.errors import ApiError
from inference.request_fields import Check, boolean


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, code, param)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(name, f"{name} must be text and not empty")
    return value


def any_value(name: str, value: Any) -> Any:
    """Taken apart by whoever uses it."""
    return value


def any_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise invalid(name, f"{name} must be text")
    return value


def neutral(*allowed: Any) -> Check:
    """A field that is not implemented: only the values that ask for nothing pass."""

    def check(name: str, value: Any) -> None:
        if not any(value == neutral and type(value) is type(neutral) for neutral in allowed):
            raise invalid(name, f"{name} is not supported by this worker", "unsupported_parameter")

    return check


def stream_options(name: str, value: Any) -> bool:
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object")
    for key, part in value.items():
        if key != "include_usage" and (key != "include_obfuscation" or part not in (None, False)):
            raise invalid(f"{name}.{key}", f"Unknown field {name}.{key}", "unknown_parameter")
    return boolean(f"{name}.include_usage", value.get("include_usage", False))


def messages(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise invalid(name, f"{name} must be a list of messages and not empty")
    return value
