"""A client of ``/v1/ws`` that goes on after lost connections, as the documentation says how."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.gateway.house import Actor, Process


class ResumingClient:
    """:ivar frames: of each request, in order. :ivar seq: number of the last frame that arrived."""

    def __init__(self, gateway: Process, actor: Actor, every: int = 7) -> None:
        self.address = gateway.url.replace("http", "ws") + "/v1/ws"
        self._headers = actor.headers
        self._every = every
        self._reader: asyncio.Task[None] | None = None
        self.socket: ClientConnection | None = None
        self.session = ""
        self.seq = 0
        self.running: list[str] = []
        self.frames: dict[str, list[dict[str, Any]]] = {}
        self.ended: set[str] = set()
        self._news = asyncio.Event()
        self._failure: AssertionError | None = None

    async def connect(self) -> dict[str, Any]:
        """Begin or resume; returns the server's answer."""
        self.socket = await connect(self.address, additional_headers=self._headers)
        if self.session:
            await self.say(type="resume", session=self.session, seq=self.seq)
        else:
            await self.say(type="session")
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(self.socket.recv(), 10))
        assert answer["type"] == "session", answer
        assert answer["resumed"] == bool(self.session)
        self.session, self.running = answer["session"], answer["requests"]
        self._reader = asyncio.create_task(self._read(self.socket))
        return answer

    async def say(self, **frame: Any) -> None:
        assert self.socket is not None
        await self.socket.send(json.dumps(frame))

    async def drop(self, *, silently: bool = False) -> None:
        """Lose the connection; ``silently``: the server is not told, as when a network goes away."""
        assert self._reader is not None
        assert self.socket is not None
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        if silently:
            self.socket.transport.pause_reading()
        else:
            self.socket.transport.abort()
            await self.socket.wait_closed()

    async def until_seq(self, seq: int, seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while self.seq < seq:
                await self._more()

    async def until_ended(self, *identities: str, seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while not set(identities) <= self.ended:
                await self._more()

    async def _more(self) -> None:
        self._news.clear()
        await self._news.wait()
        if self._failure is not None:
            raise self._failure

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for text in socket:
                if socket is not self.socket:  # the connection that takes over repeats it
                    continue
                frame = json.loads(text)
                assert frame.pop("seq") == self.seq + 1, "a frame was lost or came twice"
                self.seq += 1
                self._news.set()  # whoever waits looks once this coroutine waits again
                self.frames.setdefault(frame["id"], []).append(frame)
                if frame["type"] in {"done", "error"}:
                    self.ended.add(frame["id"])
                if self._every and self.seq % self._every == 0:
                    await self.say(type="ack", seq=self.seq)
        except ConnectionClosed:
            pass
        except AssertionError as failure:
            self._failure = failure
            self._news.set()
