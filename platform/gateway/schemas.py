"""Request bodies: strict types, unknown fields refused by name, and known fields that are not built refused by name."""

from __future__ import annotations

import gc
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from gateway.errors import ApiError, bad_request
from gateway.fields import METADATA, Shared, only, text_content, unused_metadata
from inference.errors import InvalidRequest, UnknownField
from inference.nesting import check_shape
from inference.protocol import Constraint
from inference.request_fields import COMPLETION_COUNTS, MAX_STOPS, prompt
from inference.response_format import FORMER_NAMES, constraint_of
from inference.tools.request import ToolUse, tool_use_of

MOST_MESSAGES = 2048
STOP = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOPS}]}


class Strict(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Annotated[Any, only(False)] = None


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str,
        BeforeValidator(text_content),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
    ]
    name: Annotated[str, Field(max_length=64)] | None = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    tool_calls: Annotated[list[dict[str, Any]], Field(max_length=128, fail_fast=True)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    function_call: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None

    @model_validator(mode="before")
    @classmethod
    def _calls_need_no_content(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("tool_calls") and data.get("content") is None:
            return {**data, "content": ""}
        return data

    @property
    def size(self) -> int:
        """Characters, about."""
        return len(self.content) + (len(orjson.dumps(self.tool_calls)) if self.tool_calls else 0)

    def plain(self) -> dict[str, Any]:
        """As chat templates know it; ``developer`` is OpenAI's newer word for ``system``."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        more = {name: getattr(self, name) for name in ("name", "tool_calls", "tool_call_id")}
        return message | {name: value for name, value in more.items() if value is not None}


class Sampling(Strict):
    """What both endpoints share. ``top_k`` and what follows it are vLLM's additions."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Shared("max_tokens")] | None = None
    temperature: Annotated[float, Shared("temperature")] | None = None
    top_p: Annotated[float, Shared("top_p")] | None = None
    presence_penalty: Annotated[float, Shared("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, Shared("frequency_penalty")] | None = None
    seed: Annotated[int, Shared("seed")] | None = None
    stop: Annotated[tuple[str, ...], Shared("stop"), WithJsonSchema(STOP)] | None = None
    stop_token_ids: Annotated[tuple[int, ...], Shared("stop_token_ids")] | None = None
    logit_bias: Annotated[dict[int, float], Shared("logit_bias")] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    n: Annotated[int, Shared("n")] | None = None

    top_k: Annotated[int, Shared("top_k")] | None = None
    min_p: Annotated[float, Shared("min_p")] | None = None
    repetition_penalty: Annotated[float, Shared("repetition_penalty")] | None = None
    min_tokens: Annotated[int, Shared("min_tokens")] | None = None
    prompt_logprobs: Annotated[int, Shared("prompt_logprobs")] | None = None
    ignore_eos: bool | None = None
    response_format: Annotated[Any, WithJsonSchema({"type": "object"})] = None
    structured_outputs: Annotated[Any, WithJsonSchema({"type": "object"})] = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options is only possible with stream: true")
        return self

    @model_validator(mode="after")
    def _constraint_is_well_formed(self) -> Sampling:
        try:
            constraint = self._constraint
            if self.tool_use is not None and constraint is not None:
                raise InvalidRequest("tools and a constrained answer exclude each other", "tools")
        except InvalidRequest as error:
            context = {"message": str(error), "param": error.param or "response_format"}
            kind = "unknown" if isinstance(error, UnknownField) else "constraint"
            raise PydanticCustomError(kind, "{message}", context) from None
        return self

    @cached_property
    def tool_use(self) -> ToolUse | None:
        """The tools on offer, if any are."""
        return None

    @cached_property
    def _constraint(self) -> Constraint | None:
        return constraint_of({"response_format": self.response_format, "structured_outputs": self.structured_outputs})

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def shown_logprobs(self) -> int | None:
        """How many of the most likely tokens are shown beside each generated one; ``None``: nothing is."""
        raise NotImplementedError

    @property
    def scored_prompt(self) -> tuple[str, int] | None:
        """The field that asks for the prompt's log-probabilities, and how many beside each of its tokens."""
        return None if self.prompt_logprobs is None else ("prompt_logprobs", self.prompt_logprobs)

    def sampling(self) -> dict[str, Any]:
        """Fields for the worker under vLLM's names; what the client left out stays out."""
        names = (
            "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed",
            "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos",
        )  # fmt: skip
        fields = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.stop:
            fields["stop"] = list(self.stop)
        if self.stop_token_ids:
            fields["stop_token_ids"] = list(self.stop_token_ids)
        if self.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.choices > 1:
            fields["n"] = self.choices
        if self._constraint is not None:
            name = "response_format" if self.structured_outputs is None else "structured_outputs"
            fields[name] = getattr(self, name)
        if self.shown_logprobs is not None:
            fields["logprobs"] = self.shown_logprobs
        if self.scored_prompt is not None:
            fields["prompt_logprobs"] = self.scored_prompt[1]
        return fields


class ChatRequest(Sampling):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Shared("max_completion_tokens")] | None = None
    metadata: Annotated[Any, BeforeValidator(unused_metadata), WithJsonSchema(METADATA)] = None
    store: Annotated[Any, only(False)] = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Shared("top_logprobs")] | None = None
    tools: Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "object"}})] = None
    tool_choice: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    prediction: Annotated[Any, only()] = None
    reasoning_effort: Annotated[Any, only()] = None
    verbosity: Annotated[Any, only()] = None
    service_tier: Annotated[Any, only("auto", "default")] = None
    web_search_options: Annotated[Any, only()] = None
    prompt_cache_key: Annotated[Any, only()] = None
    prompt_cache_retention: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _one_maximum(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens not in {None, self.max_tokens}:
            raise PydanticCustomError("max_tokens", "max_tokens and max_completion_tokens disagree")
        return self

    @model_validator(mode="after")
    def _logprobs_before_their_number(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs is only possible with logprobs: true")
        return self

    @model_validator(mode="after")
    def _no_stream_of_a_scored_prompt(self) -> ChatRequest:
        if self.stream and self.prompt_logprobs is not None:
            raise PydanticCustomError("prompt_logprobs", "prompt_logprobs of a chat cannot be streamed")
        return self

    @property
    def shown_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @cached_property
    def tool_use(self) -> ToolUse | None:
        fields = ("tools", "tool_choice", "parallel_tool_calls")
        return tool_use_of({name: getattr(self, name) for name in fields})

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens


class CompletionRequest(Sampling):
    prompt: Annotated[
        Any,
        Shared("prompt", prompt),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}),
    ]
    max_tokens: Annotated[int, Shared("max_tokens", COMPLETION_COUNTS["max_tokens"])] | None = None
    best_of: Annotated[int, Shared("best_of")] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Shared("logprobs", COMPLETION_COUNTS["logprobs"])] | None = None
    suffix: Annotated[Any, only("")] = None

    @model_validator(mode="after")
    def _agree(self) -> CompletionRequest:
        if self.best_of not in {None, self.choices}:
            raise PydanticCustomError("best_of", "best_of has to equal n: every choice is returned")
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise PydanticCustomError("max_tokens", "max_tokens can be 0 only with echo or prompt_logprobs")
        return self

    @property
    def shown_logprobs(self) -> int | None:
        return self.logprobs

    def sampling(self) -> dict[str, Any]:
        fields = super().sampling()
        if self.max_tokens == 0:  # the worker generates nothing only where it has the prompt to score
            fields.setdefault("prompt_logprobs", 0)
        return fields

    @property
    def scored_prompt(self) -> tuple[str, int] | None:
        fields = {"prompt_logprobs": self.prompt_logprobs, "logprobs": self.logprobs if self.echo else None}
        asked = [(name, count) for name, count in fields.items() if count is not None]
        return max(asked, key=lambda field: field[1], default=None)

    @property
    def most_tokens(self) -> int:
        """OpenAI's default for this endpoint is 16."""
        return 16 if self.max_tokens is None else self.max_tokens


AnyRequest = ChatRequest | CompletionRequest
RequestModel = TypeVar("RequestModel", bound=Sampling)

# Whole-model checks have no location of their own; their error's type names the field.
_FIELDS_OF_MODEL_CHECKS = {
    "stream_options", "max_tokens", "prompt_logprobs", "top_logprobs", "best_of",
}  # fmt: skip


def parse_json(body: bytes | str) -> Any:
    """Raises :class:`ApiError` 400 for anything that is not one JSON value."""
    # Without the collector, which looks through what is being made again and again: 60 ms in place of 210 to 670 for
    # the 1.4 million lists of four megabytes. Other threads wait meanwhile, as orjson does not let go of Python's lock.
    collects = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise bad_request("The body is not valid JSON.", code="invalid_json") from None
    finally:
        if collects:
            gc.enable()


def parse(schema: type[RequestModel], data: Any) -> RequestModel:
    """Raises :class:`ApiError` 400 that names the first field at fault."""
    if not isinstance(data, dict):
        raise bad_request("The body has to be a JSON object.", code="invalid_json")
    if len(data) > len(schema.model_fields):  # then one of them is unknown, and tells more than their number
        _check_names(schema, data)
    try:
        check_shape(data)
    except InvalidRequest as error:
        raise bad_request(f"{error}.", error.param, "invalid_json") from None
    _check_names(schema, data)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise error_of_validation(error.errors(include_url=False)) from None


def _check_names(schema: type[Sampling], data: dict[str, Any]) -> None:
    """Refuse the first unknown field, of the body, its options or a message, before any value: it often explains what
    else is wrong. Pydantic would make an error of each: a second for the 350,000 of four megabytes.
    """
    places: list[tuple[tuple[str | int, ...], type[Strict], Any]] = [
        ((), schema, data),
        (("stream_options",), StreamOptions, data.get("stream_options")),
    ]
    messages = data.get("messages")
    if isinstance(messages, list):
        places += ((("messages", number), Message, message) for number, message in enumerate(messages[:MOST_MESSAGES]))
    for place, model, given in places:
        if isinstance(given, dict) and not given.keys() <= model.model_fields.keys():
            name = next(name for name in given if name not in model.model_fields)
            raise error_of_validation([{"type": "extra_forbidden", "loc": (*place, name), "msg": "", "input": None}])


def error_of_validation(details: list[ErrorDetails]) -> ApiError:
    """The first detail as an :class:`ApiError`; unknown fields go before others, they often explain them."""
    detail = next((d for d in details if d["type"] == "extra_forbidden"), details[0])
    where = field_path(detail["loc"]) or (detail["type"] if detail["type"] in _FIELDS_OF_MODEL_CHECKS else None)
    if detail["type"] in ("constraint", "unknown"):
        where = detail["ctx"]["param"]
    if where in FORMER_NAMES:
        return bad_request(f"{where} is now called {FORMER_NAMES[where]}.", where, "unknown_parameter")
    match detail["type"]:
        case "extra_forbidden":
            return bad_request(f"Unrecognized request argument: {where}", where, "unknown_parameter")
        case "missing":
            return bad_request(f"{where} is required.", where, "missing_required_parameter")
        case "unknown":
            return bad_request(f"{detail['msg']}.", where, "unknown_parameter")
        case "unsupported":
            colon = "" if detail["msg"].startswith("is ") else ":"
            return bad_request(f"{where}{colon} {detail['msg']}.", where, "unsupported_parameter")
    message = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if detail["type"] in {"model_type", "model_attributes_type", "dict_type"}:  # whose words name a class of ours
        message = f"{where or 'The body'} has to be a JSON object"
    message = (
        message
        if where is None or message.startswith(where) or detail["type"] == "constraint"
        else f"{where}: {message}"
    )
    return bad_request(f"{message}.", where)


def field_path(location: tuple[int | str, ...]) -> str | None:
    """``("messages", 0, "content")`` as ``messages[0].content``."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path[:256] or None
