"""``/v1/completions`` and ``/v1/chat/completions``: one path for both, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inference.errors import EngineDead, GrantRefused, InferenceError, Overloaded
from inference.front.bodies import GenerateBody, generate_body
from inference.front.choices import Choices
from inference.front.chunks import ChunkWriter
from inference.front.errors import ApiError, api_error
from inference.front.event_stream import EventStream, plain
from inference.front.health import HealthCheck
from inference.front.service import Service
from inference.logprob_shapes import Echo, LogprobShapes
from inference.protocol import Delta, Grant, joined
from inference.tools.answers import ToolAnswers

FEW = 512
"""So many tokens' log-probabilities are written in the event loop; more would keep other streams waiting."""

LONG_BODY_BYTES = 256 * 1024
"""Longer bodies are read and checked beside the event loop: eight megabytes of token ids take 160 ms."""

P = ParamSpec("P")
T = TypeVar("T")


async def completions(request: Request) -> Response:
    return await _generate(request, chat=False)


async def chat_completions(request: Request) -> Response:
    return await _generate(request, chat=True)


async def _generate(request: Request, *, chat: bool) -> Response:
    service: Service = request.app.state.service
    grant = service.grant_of(request)
    raw = await service.read_body(request)
    body = await _in_thread_if(len(raw) > LONG_BODY_BYTES, generate_body, raw, chat=chat)
    try:
        choices = await service.start(body, grant)
    except GrantRefused as error:
        raise ApiError(403, str(error), "grant_refused") from error
    return GenerationResponse(service, request.app.state.health, choices, grant, body, chat=chat)


async def _in_thread_if(long: bool, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Work on a whole prompt's tokens keeps the event loop from other streams if there are many of them."""
    return await asyncio.to_thread(work, *arguments, **options) if long else work(*arguments, **options)


class GenerationResponse(Response):
    """Answers while the request runs, and aborts it when the client goes away.

    While the client reads slowly, the tokens gather and leave as one event. A stream that waits says so:
    :class:`~inference.front.event_stream.EventStream`.
    """

    def __init__(
        self, service: Service, health: HealthCheck, choices: Choices, grant: Grant, body: GenerateBody, *, chat: bool
    ) -> None:
        super().__init__(None)
        self._service, self._choices, self._grant, self._body = service, choices, grant, body
        self._health, self._chat = health, chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = asyncio.create_task(self._stream(send) if self._body.stream else self._whole(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            self._choices.close()
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _writer(self) -> ChunkWriter:
        """Made while the core computes: an echo takes as long as the prompt has tokens."""
        body, prompt, echo = self._body, self._choices.prompt, None
        if body.echo:
            text = body.prompt if isinstance(body.prompt, str) else None
            echo = await _in_thread_if(len(prompt) > FEW, Echo.of, self._service.renderer, prompt, text)
        return ChunkWriter(
            request_id=self._grant.request_id,
            model=body.model,
            fingerprint=self._service.version.tag(self._grant.adapter),
            chat=self._chat,
            token_ids=body.return_token_ids,
            include_usage=body.include_usage,
            shapes=LogprobShapes(self._service.renderer, as_ids=body.tokens_as_ids),
            echo=echo,
            prompt=prompt if body.shows_prompt_logprobs else None,
            stop_token_ids=body.sampling.get("stop_token_ids", ()),
            answers=ToolAnswers.of(body.tools, self._service.renderer),
        )

    async def _stream(self, send: Send) -> None:
        writer = await self._writer()
        async with EventStream(send, self._computes) as stream:
            try:
                async with aclosing(self._choices.deltas()) as deltas:
                    async for delta in deltas:
                        long = len(delta.prompt_logprobs or ()) > FEW
                        await stream.event(await _in_thread_if(long, writer.delta, delta))
                await stream.event(writer.last(self._choices.usage, self._choices.timings), last=True)
            except InferenceError as error:
                await stream.fail(self._failure(error))

    async def _computes(self) -> bool:
        return await self._health.core_problem() is None

    async def _whole(self, send: Send) -> None:
        writer = await self._writer()
        parts: list[list[Delta]] = [[] for _ in range(self._body.choices)]
        try:
            async with aclosing(self._choices.deltas()) as deltas:
                async for delta in deltas:
                    parts[delta.index].append(delta)
        except InferenceError as error:
            await plain(send, self._failure(error).response())
            return
        choices = [joined(deltas) for deltas in parts]
        long = any(len(choice.prompt_logprobs or ()) + len(choice.logprobs or ()) > FEW for choice in choices)
        content = await _in_thread_if(long, writer.whole, choices, self._choices.usage, self._choices.timings)
        await plain(send, Response(content, media_type="application/json"))

    def _failure(self, error: InferenceError) -> ApiError:
        if isinstance(error, Overloaded | EngineDead) and not self._choices.usage.completion_tokens:
            self._service.verifier.give_back(self._grant)  # nothing was computed: the same grant may try again
        return api_error(error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
