"""``/v1/completions`` and ``/v1/chat/completions``: one path for both, streamed or whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inference.errors import EngineDead, GrantRefused, InferenceError, Overloaded
from inference.front.bodies import GenerateBody, generate_body
from inference.front.chunks import ChunkWriter
from inference.front.errors import ApiError, api_error
from inference.front.generation import Generation
from inference.front.service import Service
from inference.protocol import Delta, Grant


async def completions(request: Request) -> Response:
    return await _generate(request, chat=False)


async def chat_completions(request: Request) -> Response:
    return await _generate(request, chat=True)


async def _generate(request: Request, *, chat: bool) -> Response:
    service: Service = request.app.state.service
    grant = service.grant_of(request)
    body = generate_body(await service.read_body(request), chat=chat)
    try:
        generation = await service.start(body, grant)
    except GrantRefused as error:
        raise ApiError(403, str(error), "grant_refused") from error
    return GenerationResponse(service, generation, grant, body, chat=chat)


class GenerationResponse(Response):
    """Answers while the request runs, and aborts it when the client goes away.

    The head is sent only with the first token, so that whatever fails before it gets its own status. ``send`` waits
    while the client reads slowly; the tokens gather meanwhile and leave as one event.
    """

    def __init__(
        self, service: Service, generation: Generation, grant: Grant, body: GenerateBody, *, chat: bool
    ) -> None:
        super().__init__(None)
        self._service, self._generation, self._grant, self._body = service, generation, grant, body
        self._writer = ChunkWriter(
            request_id=grant.request_id,
            model=body.model,
            chat=chat,
            token_ids=body.return_token_ids,
            include_usage=body.include_usage,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = asyncio.create_task(self._stream(send) if self._body.stream else self._whole(scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                await answer
        finally:
            self._generation.close()
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _stream(self, send: Send) -> None:
        started = False
        try:
            async with aclosing(self._deltas()) as deltas:
                async for delta in deltas:
                    if not started:
                        await send(_head(b"text/event-stream"))
                        started = True
                        await _body(send, self._writer.first() + self._writer.delta(delta))
                    else:
                        await _body(send, self._writer.delta(delta))
            await _body(send, self._writer.last(self._generation.usage), last=True)
        except InferenceError as error:
            failure = self._failure(error)
            if started:
                await _body(send, failure.event(), last=True)  # no [DONE]: the stream did not end well
            else:
                await _plain(send, failure.response())

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: list[str] = []
        tokens: list[int] = []
        finish = "error"
        try:
            async with aclosing(self._deltas()) as deltas:
                async for delta in deltas:
                    pieces.append(delta.text)
                    tokens += delta.token_ids
                    finish = delta.finish_reason or finish
        except InferenceError as error:
            await _plain(send, self._failure(error).response())
            return
        content = self._writer.whole("".join(pieces), tokens, finish, self._generation.usage)
        await _plain(send, Response(content, media_type="application/json"))

    def _deltas(self) -> AsyncGenerator[Delta, None]:
        return self._generation.deltas()

    def _failure(self, error: InferenceError) -> ApiError:
        if isinstance(error, Overloaded | EngineDead) and not self._generation.usage.completion_tokens:
            self._service.verifier.give_back(self._grant)  # nothing was computed: the same grant may try again
        return api_error(error)


def _head(media_type: bytes) -> dict[str, Any]:
    headers = [(b"content-type", media_type), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    return {"type": "http.response.start", "status": 200, "headers": headers}


async def _body(send: Send, body: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _plain(send: Send, response: Response) -> None:
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await _body(send, bytes(response.body), last=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
