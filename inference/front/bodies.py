"""Request bodies, taken apart strictly: an unknown field, a wrong type or a value out of range is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from inference.front.errors import ApiError
from inference.protocol import SamplingParams

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1000
Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class GenerateBody:
    """What a client asked for, before the grant is compared with it.

    :ivar prompt: text or ids (completions); :ivar messages: the conversation (chat). Exactly one is set.
    """

    model: str
    prompt: str | list[int] | None
    messages: list[dict[str, Any]] | None
    max_tokens: int | None
    sampling: dict[str, Any]
    stream: bool
    include_usage: bool
    return_token_ids: bool
    add_special_tokens: bool
    cache_salt: str | None
    priority: int | None


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, code, param)


def load_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body."""
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", "invalid_json") from error
    if not isinstance(data, dict):
        raise ApiError(400, "The body is not a JSON object", "invalid_json")
    return data


def _number(low: float, high: float, *, open_low: bool = False) -> Check:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise invalid(name, f"{name} must be a number")
        if not low <= value <= high or (open_low and value == low):
            raise invalid(name, f"{name} must be {'above' if open_low else 'at least'} {low} and at most {high}")
        return float(value)

    return check


def _integer(low: int, high: int) -> Check:
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


def _any_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise invalid(name, f"{name} must be text")
    return value


def _neutral(*allowed: Any) -> Check:
    """A field that is not implemented: only the values that ask for nothing pass."""

    def check(name: str, value: Any) -> None:
        if not any(value == neutral and type(value) is type(neutral) for neutral in allowed):
            raise invalid(name, f"{name} is not supported by this worker", "unsupported_parameter")

    return check


def _stop(name: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise invalid(name, f"{name} must be text or a list of at most {MAX_STOPS} texts")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise invalid(name, f"{name}: each must be text of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def token_ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int and token >= 0 for token in value):
        raise invalid(name, f"{name} must be a list of token ids")
    return value


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or len(value) > 1024:
        raise invalid(name, f"{name} must be an object of at most 1024 tokens")
    bias = {}
    for token, amount in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise invalid(name, f"{name}: {token[:32]!r} is not a token id")
        bias[int(token)] = _number(-100, 100)(name, amount)
    return bias


def _stream_options(name: str, value: Any) -> bool:
    if not isinstance(value, dict):
        raise invalid(name, f"{name} must be an object")
    for key in value:
        if key != "include_usage":
            raise invalid(f"{name}.{key}", f"Unknown field {name}.{key}", "unknown_parameter")
    return boolean(f"{name}.include_usage", value.get("include_usage", False))


def _prompt(name: str, value: Any) -> str | list[int]:
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


_SAMPLING: dict[str, Check] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, open_low=True),
    "top_k": lambda name, value: max(0, _integer(-1, 1 << 30)(name, value)),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0, 10, open_low=True),
    "logit_bias": _logit_bias,
    "seed": _integer(-(1 << 63), (1 << 63) - 1),
    "stop": _stop,
    "stop_token_ids": lambda name, value: tuple(token_ids(name, value)),
    "ignore_eos": boolean,
    "min_tokens": _integer(0, 1 << 30),
}
_COMMON: dict[str, Check] = {
    **_SAMPLING,
    "model": text,
    "max_tokens": _integer(1, 1 << 30),
    "stream": boolean,
    "stream_options": _stream_options,
    "return_token_ids": boolean,
    "add_special_tokens": boolean,
    "cache_salt": text,
    "priority": _integer(-(1 << 31), (1 << 31) - 1),
    "user": _any_text,
    "n": _neutral(1),
    "best_of": _neutral(1),
}
_COMPLETION: dict[str, Check] = {
    **_COMMON,
    "prompt": _prompt,
    "echo": _neutral(False),
    "suffix": _neutral(""),
    "logprobs": _neutral(),
}
_CHAT: dict[str, Check] = {
    **_COMMON,
    "messages": messages,
    "max_completion_tokens": _integer(1, 1 << 30),
    "logprobs": _neutral(False),
    "top_logprobs": _neutral(0),
    "tools": _neutral(),
    "tool_choice": _neutral("none"),
    "parallel_tool_calls": _neutral(),
    "functions": _neutral(),
    "function_call": _neutral("none"),
    "response_format": _neutral({"type": "text"}),
}


def checked(data: dict[str, Any], fields: Mapping[str, Check]) -> dict[str, Any]:
    """The fields' values; ``null`` is the same as absent."""
    values = {}
    for name, value in data.items():
        check = fields.get(name)
        if check is None:
            raise invalid(name, f"Unknown field {name}", "unknown_parameter")
        if value is not None:
            values[name] = check(name, value)
    return values


def generate_body(raw: bytes, *, chat: bool) -> GenerateBody:
    """The body of ``/v1/completions`` or ``/v1/chat/completions``; raises :class:`ApiError` naming the field."""
    values = checked(load_object(raw), _CHAT if chat else _COMPLETION)
    for name in ("model", "messages" if chat else "prompt"):
        if name not in values:
            raise invalid(name, f"{name} is missing", "missing_parameter")
    limits = {values[name] for name in ("max_tokens", "max_completion_tokens") if name in values}
    if len(limits) > 1:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens disagree")
    if "stream_options" in values and not values.get("stream"):
        raise invalid("stream_options", "stream_options needs stream: true")
    return GenerateBody(
        model=values["model"],
        prompt=values.get("prompt"),
        messages=values.get("messages"),
        max_tokens=limits.pop() if limits else None,
        sampling={name: values[name] for name in _SAMPLING if name in values},
        stream=values.get("stream", False),
        include_usage=values.get("stream_options", False),
        return_token_ids=values.get("return_token_ids", False),
        add_special_tokens=values.get("add_special_tokens", True),
        cache_salt=values.get("cache_salt"),
        priority=values.get("priority"),
    )


def sampling_params(body: GenerateBody, max_tokens: int, vocab_size: int) -> SamplingParams:
    """Sampling with the limit that the grant allows."""
    params = SamplingParams(max_tokens=max_tokens, **body.sampling)
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        if any(token >= vocab_size for token in tokens):
            raise invalid(name, f"{name}: token ids must be below {vocab_size}")
    if params.min_tokens > max_tokens:
        raise invalid("min_tokens", f"min_tokens must not exceed max_tokens ({max_tokens})")
    return params
