"""What the value of one field may be: each check returns the value as the worker uses it, or refuses it by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from inference.front.errors import ApiError

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000
Check = Callable[[str, Any], Any]


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, code, param)


def number(low: float, high: float, *, open_low: bool = False) -> Check:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise invalid(name, f"{name} must be a number")
        if not low <= value <= high or (open_low and value == low):
            raise invalid(name, f"{name} must be {'above' if open_low else 'at least'} {low} and at most {high}")
        return float(value)

    return check


def integer(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(name, f"{name} must be an integer")
        if not low <= value <= high:
            raise invalid(name, f"{name} must lie between {low} and {high}")
        return value

    return check


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, f"{name} must be true or false")
    return value


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


def stop(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise invalid(name, f"{name} must be text or a list of at most {MAX_STOPS} texts")
    for each in stops:
        if not isinstance(each, str) or not 0 < len(each) <= MAX_STOP_CHARACTERS:
            raise invalid(name, f"{name}: each must be text of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def token_ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise invalid(name, f"{name} must be a list of token ids")
    return value


def logit_bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > 1024:
        raise invalid(name, f"{name} must be an object of at most 1024 tokens")
    bias = {}
    for token, amount in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise invalid(name, f"{name}: {token[:32]!r} is not a token id")
        bias[int(token)] = number(-100, 100)(name, amount)
    return bias


def stream_options(name: str, value: Any) -> bool:
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object")
    for key in value:
        if key != "include_usage":
            raise invalid(f"{name}.{key}", f"Unknown field {name}.{key}", "unknown_parameter")
    return boolean(f"{name}.include_usage", value.get("include_usage", False))


def prompt(name: str, value: Any) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]  # a batch of one
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        raise invalid(name, "More than one prompt in a request is not supported", "unsupported_parameter")
    if not value:
        raise invalid(name, "prompt must not be empty")
    return value if isinstance(value, str) else token_ids(name, value)


def messages(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise invalid(name, f"{name} must be a list of messages and not empty")
    return value
