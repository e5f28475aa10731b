"""The choices of one request: the same prompt, continued ``n`` times."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from inference.front.generation import Generation
from inference.protocol import Delta, Usage, WorkerTimings


def choice_seed(seed: int, index: int) -> int:
    """The random stream of one choice, 63 bits. Choice 0 has the request's own: it is what ``n = 1`` gives."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}#{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Choices:
    """Begins with choice 0; the others follow once its first token is there, and find the prompt in the cache.

    They are one request: they end together with the first error, and with :meth:`close`.

    :ivar prompt: token ids.

    :param start: submits the choice of an index.
    """

    def __init__(self, prompt: Sequence[int], start: Callable[[int], Generation], count: int) -> None:
        self.prompt = prompt
        self._start = start
        self._count = count
        self._begun = [start(0)]

    @property
    def usage(self) -> Usage:
        """The prompt once, and every choice's tokens so far."""
        first = self._begun[0].usage
        return replace(first, completion_tokens=sum(choice.usage.completion_tokens for choice in self._begun))

    @property
    def timings(self) -> WorkerTimings | None:
        """Of the request: choice 0 waits and computes the prompt, the last token is that of any choice."""
        return self._begun[0].times.timings(max(choice.times.last for choice in self._begun))

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """All choices' deltas as they come, each with its ``index``; the very last one has the usage."""
        streams = [self._begun[0].deltas()]
        if self._count == 1:
            async with aclosing(streams[0]) as only:
                async for delta in only:
                    yield delta
            return
        pending = {asyncio.create_task(_next(streams[0])): 0}
        try:
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=pending.__getitem__):
                    index = pending.pop(task)
                    delta = task.result()
                    if len(streams) == 1:
                        for other in range(1, self._count):
                            self._begun.append(self._start(other))
                            streams.append(self._begun[other].deltas())
                            pending[asyncio.create_task(_next(streams[other]))] = other
                    if delta.finish_reason is None:
                        pending[asyncio.create_task(_next(streams[index]))] = index
                    yield replace(delta, index=index, usage=None if pending else self.usage)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for stream in streams:
                await stream.aclose()

    def close(self) -> None:
        """Abort what is still running."""
        for choice in self._begun:
            choice.close()


async def _next(stream: AsyncGenerator[Delta, None]) -> Delta:
    return await anext(stream)
