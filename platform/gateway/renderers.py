from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from uuid import UUID

import orjson

from gateway.errors import ApiError, bad_request
from gateway.schemas import AnyRequest, ChatRequest
from inference.prompt import PromptRenderer
from inference.protocol import MAX_ANSWER_LOGPROBS, MAX_PROMPT_LOGPROBS
from tenants.access import ServedModel

MOST_MODELS = 16
THREAD_FROM_CHARACTERS = 4096
"""Shorter prompts are encoded in less time than a thread takes to start."""


LARGE_FROM_CHARACTERS = 65_536
"""Prompts from here on take a tenth of a second and megabytes each: they are encoded one after the other."""

MOST_LARGE_OF_ONE_TENANT = 4

MOST_MEDIUM_OF_ONE_TENANT = 128
"""Of those between: each tenant's are encoded one after the other, beside other tenants'."""


class _Line:
    """Prompts of one class of sizes on their way into a thread, one at a time.

    :param most: of one tenant, the one at work included. :param shared: one line for all tenants, or each has its own.
    """

    def __init__(self, most: int, *, shared: bool) -> None:
        self._most = most
        self._shared = shared
        self._waiting: Counter[UUID] = Counter()
        self._places: dict[UUID | None, asyncio.Semaphore] = {}

    async def encode(self, work: Callable[[], list[int]], tenant: UUID) -> list[int]:
        """Raises ``ApiError`` 429 when too many of the tenant's are there."""
        if self._waiting[tenant] >= self._most:
            raise ApiError(
                429, "rate_limit_exceeded", "Too many long prompts at once; try again shortly.", retry_after=1.0
            )
        self._waiting[tenant] += 1
        # A client that leaves does not stop the thread, so its turn lasts until the thread has ended.
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(work, tenant)))

    async def _in_turn(self, work: Callable[[], list[int]], tenant: UUID) -> list[int]:
        line = None if self._shared else tenant
        try:
            async with self._places.setdefault(line, asyncio.Semaphore(1)):
                return await asyncio.to_thread(work)
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]
                if not self._shared:
                    del self._places[tenant]


class Renderers:
    """Chat templates and tokenizers of the base models in use, loaded once per fingerprint.

    Encoding comes before admission, so it has bounds of its own: what can never fit is refused by its length in
    characters, and long prompts wait for each other, few of each tenant.
    """

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, asyncio.Task[PromptRenderer]] = OrderedDict()
        self._large = _Line(MOST_LARGE_OF_ONE_TENANT, shared=True)
        self._medium = _Line(MOST_MEDIUM_OF_ONE_TENANT, shared=False)

    async def of(self, model: ServedModel) -> PromptRenderer:
        """Raises :class:`~inference.errors.ConfigError` or ``OSError`` when the model store cannot be read."""
        task = self._loaded.get(model.fingerprint)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(asyncio.to_thread(PromptRenderer.load, model.model_dir))
            self._loaded[model.fingerprint] = task
            if len(self._loaded) > MOST_MODELS:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(model.fingerprint)
        return await asyncio.shield(task)

    async def encode(self, model: ServedModel, request: AnyRequest, tenant: UUID) -> list[int]:
        """Token ids of the request's prompt.

        Also refuses what depends on the model and would otherwise be refused by the worker, after admission.
        Raises :class:`~inference.errors.InvalidRequest`, or ``ApiError`` 400 and 429.
        """
        renderer = await self.of(model)
        _check_against_model(renderer, request)
        if isinstance(request, ChatRequest):
            messages = [message.plain() for message in request.messages]
            use = request.tool_use
            size = sum(message.size for message in request.messages)
            if use is not None:
                size += len(orjson.dumps(request.tools))
            return await self._encode(
                lambda: renderer.encode_tool_chat(messages, use), size, renderer, "messages", tenant
            )
        prompt = request.prompt
        if isinstance(prompt, str):
            ids = await self._encode(
                lambda: renderer.encode(prompt, add_special_tokens=True), len(prompt), renderer, "prompt", tenant
            )
            if not ids:
                raise bad_request("prompt: holds no token.", "prompt")
            return ids
        if len(prompt) >= renderer.context_length:
            raise _too_long(renderer, f"has {len(prompt)} tokens", "prompt")
        if max(prompt) >= renderer.vocab_size:
            raise bad_request(f"prompt: token ids have to be below {renderer.vocab_size}.", "prompt")
        return list(prompt)

    async def _encode(
        self, work: Callable[[], list[int]], size: int, renderer: PromptRenderer, param: str, tenant: UUID
    ) -> list[int]:
        least = size // renderer.longest_token
        if least >= renderer.context_length:
            raise _too_long(renderer, f"has at least {least} tokens", param)
        if size < THREAD_FROM_CHARACTERS:
            return work()
        line = self._medium if size < LARGE_FROM_CHARACTERS else self._large
        return await line.encode(work, tenant)


def _too_long(renderer: PromptRenderer, what: str, param: str) -> ApiError:
    message = f"The model's context is {renderer.context_length} tokens, but the prompt {what}."
    return ApiError(400, "context_length_exceeded", message, param)


def check_scores(request: AnyRequest, prompt_tokens: int) -> None:
    """Raises ``ApiError`` 400 when the log-probabilities asked for are more than one answer can hold."""
    most = most_scored_tokens(request)
    if most is not None and request.most_tokens is not None and request.most_tokens > most:
        message = (
            f"max_tokens: with this n and these log-probabilities at most {most}: "
            f"one answer may hold {MAX_ANSWER_LOGPROBS} log-probabilities."
        )
        raise bad_request(message, "max_tokens")
    if request.scored_prompt is None:
        return
    field, top = request.scored_prompt
    if request.choices * prompt_tokens * (top + 1) > MAX_PROMPT_LOGPROBS:
        times = f", {request.choices} times," if request.choices > 1 else ""
        message = (
            f"{field}: {top} beside each of the prompt's {prompt_tokens} tokens{times} are more than the "
            f"{MAX_PROMPT_LOGPROBS} log-probabilities of prompts that one answer may hold."
        )
        raise bad_request(message, field)


def most_scored_tokens(request: AnyRequest) -> int | None:
    """How many tokens of each choice one answer can hold with their log-probabilities; ``None``: nobody asked."""
    top = request.shown_logprobs
    return None if top is None else MAX_ANSWER_LOGPROBS // (request.choices * (top + 1))


def _check_against_model(renderer: PromptRenderer, request: AnyRequest) -> None:
    for field in ("logit_bias", "stop_token_ids"):
        wrong = next((token for token in getattr(request, field) or () if token >= renderer.vocab_size), None)
        if wrong is not None:
            raise bad_request(f"{field}: {wrong} is not below {renderer.vocab_size}.", field)
    most = renderer.context_length if request.most_tokens is None else request.most_tokens
    if request.min_tokens is not None and request.min_tokens > most:
        raise bad_request(f"min_tokens: {request.min_tokens} exceeds the {most} tokens at most.", "min_tokens")
