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
MAX_LOGPROBS = 20
MAX_CHOICES = 16
Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class GenerateBody:
    """What a client asked for, before the grant is compared with it.

    :ivar prompt: text or ids (completions); :ivar messages: the conversation (chat). Exactly one is set.
    :ivar max_tokens: for each choice; 0 asks for the echoed prompt alone.
    :ivar choices: how many continuations.
    :ivar shows_prompt_logprobs: asked for by name, not only for the echo.
    """

    model: str
    prompt: str | list[int] | None
    messages: list[dict[str, Any]] | None
    max_tokens: int | None
    sampling: dict[str, Any]
    choices: int
    echo: bool
    shows_prompt_logprobs: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool
    tokens_as_ids: bool
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
    "n": _integer(1, MAX_CHOICES),
    "prompt_logprobs": _integer(0, MAX_LOGPROBS),
    "return_tokens_as_token_ids": boolean,
}
_COMPLETION: dict[str, Check] = {
    **_COMMON,
    "prompt": _prompt,
    "max_tokens": _integer(0, 1 << 30),
    "echo": boolean,
    "best_of": _integer(1, MAX_CHOICES),
    "suffix": _neutral(""),
    "logprobs": _integer(0, MAX_LOGPROBS),
}
_CHAT: dict[str, Check] = {
    **_COMMON,
    "messages": messages,
    "max_completion_tokens": _integer(1, 1 << 30),
    "logprobs": boolean,
    "top_logprobs": _integer(0, MAX_LOGPROBS),
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
    most = limits.pop() if limits else None
    _check_together(values, most, chat=chat)
    return GenerateBody(
        model=values["model"],
        prompt=values.get("prompt"),
        messages=values.get("messages"),
        max_tokens=most,
        sampling={name: values[name] for name in _SAMPLING if name in values} | _logprobs(values, chat=chat),
        choices=values.get("n", 1),
        echo=values.get("echo", False),
        shows_prompt_logprobs="prompt_logprobs" in values,
        stream=values.get("stream", False),
        include_usage=values.get("stream_options", False),
        return_token_ids=values.get("return_token_ids", False),
        tokens_as_ids=values.get("return_tokens_as_token_ids", False),
        add_special_tokens=values.get("add_special_tokens", True),
        cache_salt=values.get("cache_salt"),
        priority=values.get("priority"),
    )


def _check_together(values: Mapping[str, Any], max_tokens: int | None, *, chat: bool) -> None:
    """Fields that are right alone and wrong beside each other."""
    if values.get("top_logprobs") and not values.get("logprobs"):
        raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
    if values.get("best_of", 1) != values.get("n", 1) and "best_of" in values:
        raise invalid("best_of", "best_of must equal n: every choice is returned", "unsupported_parameter")
    if chat and values.get("stream") and "prompt_logprobs" in values:
        raise invalid("prompt_logprobs", "prompt_logprobs of a chat are not available with stream: true")
    if max_tokens == 0 and not values.get("echo"):
        raise invalid("max_tokens", "max_tokens must be at least 1; 0 is possible only with echo: true")


def _logprobs(values: Mapping[str, Any], *, chat: bool) -> dict[str, int | None]:
    """How many of the most likely tokens the core has to report, for the answer and for the prompt."""
    if chat:
        count = values.get("top_logprobs", 0) if values.get("logprobs") else None
    else:
        count = values.get("logprobs")
    prompt = values.get("prompt_logprobs")
    if values.get("echo") and count is not None:
        prompt = max(count, prompt or 0)
    return {"logprobs": count, "prompt_logprobs": prompt}


def sampling_params(body: GenerateBody, max_tokens: int, vocab_size: int) -> SamplingParams:
    """Sampling with the limit that the grant allows. The core cannot but generate one token, even if none is wanted."""
    params = SamplingParams(max_tokens=max(max_tokens, 1), **body.sampling)
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        if any(token >= vocab_size for token in tokens):
            raise invalid(name, f"{name}: token ids must be below {vocab_size}")
    if params.min_tokens > max_tokens:
        raise invalid("min_tokens", f"min_tokens must not exceed max_tokens ({max_tokens})")
    return params
