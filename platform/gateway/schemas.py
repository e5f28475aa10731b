"""Request bodies: strict types, and known fields that are not built refused by name."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from gateway.fields import METADATA, Shared, only, text_content, unused_metadata
from inference.errors import InvalidRequest, UnknownField
from inference.protocol import Constraint
from inference.request_fields import COMPLETION_COUNTS, MAX_STOPS, prompt
from inference.response_format import constraint_of
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

    @property
    def names_tokens(self) -> bool:
        """Whether the client said how many it wants: else it gets what fits, up to :attr:`most_tokens`."""
        return self.most_tokens is not None


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
        """OpenAI's default for this endpoint is 16, or what fits where that is less."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def names_tokens(self) -> bool:
        return self.max_tokens is not None


AnyRequest = ChatRequest | CompletionRequest
