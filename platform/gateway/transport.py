"""From a run to its client, whatever the wire: streamed or whole, and how errors end it."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing

from gateway.chat import Run
from gateway.chunks import FEW, Chunks
from gateway.errors import ApiError, error_of
from inference.protocol import Delta, joined
from tenants.errors import Denied


class ClientGone(Exception):
    """The client left, or reads nothing: what ends a run without anybody to tell."""


class Transport(ABC):
    """Where the chunks of a run go. Blocks while the client reads too slowly. Whatever it raises ends the run;
    :class:`ClientGone` ends it in silence.
    """

    @abstractmethod
    async def send(self, run: Run, chunks: Sequence[bytes]) -> None:
        """JSON objects in order; the first call opens the answer."""

    @abstractmethod
    async def finish(self, run: Run) -> None: ...

    @abstractmethod
    async def fail(self, run: Run, error: ApiError) -> None:
        """The run ended with ``error``, before or after the first chunk."""


async def serve(run: Run, transport: Transport, *, stream: bool) -> None:
    """Drive ``run`` to its end over ``transport``.

    Raises ``CancelledError`` when the caller's task is cancelled: the client is gone, nothing more is sent.
    """
    try:
        await (_stream if stream else _whole)(run, transport)
    except asyncio.CancelledError:
        error = run.take_stop()
        if error is None:
            raise
        with contextlib.suppress(ClientGone):
            await transport.fail(run, error)
    except ClientGone:
        return
    except Exception as error:
        found = error_of(error)
        run.note(found, recorded=isinstance(error, Denied))
        with contextlib.suppress(ClientGone):
            await transport.fail(run, found)


async def _stream(run: Run, transport: Transport) -> None:
    chunks: Chunks | None = None
    async with aclosing(run.deltas()) as deltas:
        async for delta in deltas:
            if chunks is None:
                chunks = await run.chunks()
            if len(delta.prompt_logprobs or ()) > FEW:
                payloads = await asyncio.to_thread(chunks.of, delta)
            else:
                payloads = chunks.of(delta)
            if payloads:
                await transport.send(run, payloads)
    assert chunks is not None, "deltas() yields or raises"
    usage = await run.settled()
    last = chunks.last(usage)
    if last:
        await transport.send(run, last)
    await transport.finish(run)


async def _whole(run: Run, transport: Transport) -> None:
    parts: list[list[Delta]] = [[] for _ in range(run.request.choices)]
    async with aclosing(run.deltas()) as deltas:
        async for delta in deltas:
            parts[delta.index].append(delta)
    usage = await run.settled()
    chunks = await run.chunks()
    choices = [joined(deltas) for deltas in parts]
    scored = any(choice.logprobs or choice.prompt_logprobs for choice in choices)
    answer = await asyncio.to_thread(chunks.whole, choices, usage) if scored else chunks.whole(choices, usage)
    await transport.send(run, [answer])
    await transport.finish(run)
