"""Request bodies, taken apart strictly: an unknown field, a wrong type or a value out of range is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from inference.errors import InvalidRequest
from inference.front.errors import ApiError, api_error
from inference.front.field_checks import any_text, any_value, invalid, messages, neutral, stream_options, text
from inference.nesting import check_shape
from inference.protocol import MAX_ANSWER_LOGPROBS, MAX_PROMPT_LOGPROBS, SamplingParams
from inference.request_fields import COMPLETION_COUNTS, COUNTS, SAMPLING, Check, Integer, boolean, prompt
from inference.response_format import FORMER_NAMES, constraint_of
from inference.tools.request import ToolUse, tool_use_of


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
    tools: ToolUse | None
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


def load_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body, no deeper and no larger than :func:`~inference.nesting.check_shape` allows."""
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", "invalid_json") from error
    if not isinstance(data, dict):
        raise ApiError(400, "The body is not a JSON object", "invalid_json")
    try:
        check_shape(data)
    except InvalidRequest as error:
        raise ApiError(400, str(error), "invalid_json", error.param) from error
    return data


_COMMON: dict[str, Check] = {
    **SAMPLING,
    "model": text,
    "max_tokens": COUNTS["max_tokens"],
    "stream": boolean,
    "stream_options": stream_options,
    "return_token_ids": boolean,
    "add_special_tokens": boolean,
    "cache_salt": text,
    "priority": Integer(-(1 << 31), (1 << 31) - 1),
    "user": any_text,
    "n": COUNTS["n"],
    "prompt_logprobs": COUNTS["prompt_logprobs"],
    "response_format": any_value,
    "structured_outputs": any_value,
    "return_tokens_as_token_ids": boolean,
}
_COMPLETION: dict[str, Check] = {
    **_COMMON,
    **COMPLETION_COUNTS,
    "prompt": prompt,
    "echo": boolean,
    "best_of": COUNTS["best_of"],
    "suffix": neutral(""),
}
_CHAT: dict[str, Check] = {
    **_COMMON,
    "messages": messages,
    "max_completion_tokens": COUNTS["max_completion_tokens"],
    "logprobs": boolean,
    "top_logprobs": COUNTS["top_logprobs"],
    "tools": any_value,
    "tool_choice": any_value,
    "parallel_tool_calls": any_value,
    "functions": neutral(),
    "function_call": neutral("none"),
}


def checked(data: dict[str, Any], fields: Mapping[str, Check]) -> dict[str, Any]:
    """The fields' values; ``null`` is the same as absent."""
    for name in data:  # before all others: an unknown field often explains them
        if name in FORMER_NAMES:
            raise invalid(name, f"{name} is now called {FORMER_NAMES[name]}", "unknown_parameter")
        if name not in fields:
            raise invalid(name, f"Unknown field {name}", "unknown_parameter")
    values = {}
    for name, value in data.items():
        if value is not None:
            try:
                values[name] = fields[name](name, value)
            except InvalidRequest as error:
                raise api_error(error) from error
    return values


def generate_body(raw: bytes, *, chat: bool) -> GenerateBody:
    """The body of ``/v1/completions`` or ``/v1/chat/completions``; raises :class:`ApiError` naming the field."""
    data = load_object(raw)
    values = checked(data, _CHAT if chat else _COMPLETION)
    for name in ("model", "messages" if chat else "prompt"):
        if name not in values:
            raise invalid(
                name, f"{name} is required", "invalid_value" if name in data else "missing_required_parameter"
            )
    limits = {values[name] for name in ("max_tokens", "max_completion_tokens") if name in values}
    if len(limits) > 1:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens disagree")
    if "stream_options" in values and not values.get("stream"):
        raise invalid("stream_options", "stream_options needs stream: true")
    most = limits.pop() if limits else None
    _check_together(values, most, chat=chat)
    try:
        constraint, tools = constraint_of(values), tool_use_of(values)
    except InvalidRequest as error:
        raise api_error(error) from error
    if constraint is not None and tools is not None:
        raise invalid("tools", "Tools and a constrained answer exclude each other")
    return GenerateBody(
        model=values["model"],
        prompt=values.get("prompt"),
        messages=values.get("messages"),
        tools=tools,
        max_tokens=most,
        sampling={
            **{name: values[name] for name in SAMPLING if name in values},
            **_logprobs(values, chat=chat),
            "constraint": constraint,
        },
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
        raise invalid("best_of", "best_of must equal n: every choice is returned")
    if chat and values.get("stream") and "prompt_logprobs" in values:
        raise invalid("prompt_logprobs", "prompt_logprobs of a chat are not available with stream: true")
    if max_tokens == 0 and not values.get("echo") and "prompt_logprobs" not in values:
        raise invalid("max_tokens", "max_tokens must be at least 1; 0 is possible only with echo or prompt_logprobs")


def _logprobs(values: Mapping[str, Any], *, chat: bool) -> dict[str, int | None]:
    """How many of the most likely tokens the core has to report, for the answer and for the prompt."""
    if chat:
        count = values.get("top_logprobs", 0) if values.get("logprobs") else None
    else:
        count = values.get("logprobs")
    scores = values.get("prompt_logprobs")
    if values.get("echo") and count is not None:
        scores = max(count, scores or 0)
    return {"logprobs": count, "prompt_logprobs": scores}


def check_scores(body: GenerateBody, prompt_tokens: int) -> None:
    """Raises :class:`ApiError` when the log-probabilities asked for are too many for one answer."""
    top, choices = body.sampling["prompt_logprobs"], body.choices
    if top is not None and choices * prompt_tokens * (top + 1) > MAX_PROMPT_LOGPROBS:
        field = "prompt_logprobs" if body.shows_prompt_logprobs else "logprobs"
        times = f", {choices} times," if choices > 1 else ""
        raise invalid(
            field,
            f"{field}: {top} beside each of {prompt_tokens} prompt tokens{times} are more than the "
            f"{MAX_PROMPT_LOGPROBS} log-probabilities of prompts that one answer may hold",
        )
    most = most_scored_tokens(body)
    if most is not None and body.max_tokens is not None and body.max_tokens > most:
        raise invalid(
            "max_tokens",
            f"max_tokens: with this n and these log-probabilities at most {most}: "
            f"one answer may hold {MAX_ANSWER_LOGPROBS} log-probabilities",
        )


def most_scored_tokens(body: GenerateBody) -> int | None:
    """How many tokens of each choice one answer can hold with their log-probabilities; ``None``: nobody asked."""
    top = body.sampling["logprobs"]
    return None if top is None else MAX_ANSWER_LOGPROBS // (body.choices * (top + 1))


def sampling_params(body: GenerateBody, max_tokens: int, vocab_size: int) -> SamplingParams:
    """Sampling with the limit that the grant allows. The core cannot but generate one token, even if none is wanted."""
    params = SamplingParams(max_tokens=max(max_tokens, 1), **body.sampling)
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        if any(token >= vocab_size for token in tokens):
            raise invalid(name, f"{name}: token ids must be below {vocab_size}")
    if params.min_tokens > max_tokens:
        raise invalid("min_tokens", f"min_tokens must not exceed max_tokens ({max_tokens})")
    return params
