"""The front's end of the socket: starts the core, sends it requests, hands out what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inference import errors
from inference.core.codec import MAX_FRAME_BYTES
from inference.core.messages import (
    Abort,
    DeclarePrefix,
    LoadAdapter,
    Message,
    Probe,
    Ready,
    Reply,
    Stats,
    Step,
    Submit,
    UnloadAdapter,
    WithdrawPrefix,
    decode,
    encode,
)
from inference.errors import ConfigError, EngineDead, InferenceError, InvalidRequest
from inference.protocol import FinishReason, TokenLogprob

log = logging.getLogger(__name__)

NO_SLOTS = "This worker serves no adapters: it was started with --slots 0"


class TokenInbox:
    """What one request has gained and nobody has taken yet.

    A slow reader finds many tokens at once instead of a queue of single ones.
    """

    __slots__ = ("_event", "cached_tokens", "error", "finish", "logprobs", "prompt_logprobs", "tokens", "waited")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: tuple[TokenLogprob, ...] | None = None
        self.finish: FinishReason | None = None
        self.error: InferenceError | None = None
        self.cached_tokens = 0
        self.waited: float | None = None  # seconds in the core's queue, once it runs
        self._event = asyncio.Event()

    def put(self, tokens: Sequence[int], finish: FinishReason | None, cached_tokens: int) -> None:
        self.tokens += tokens
        self.finish = finish
        self.cached_tokens = cached_tokens
        self._event.set()

    def put_logprobs(self, logprobs: list[Any] | None, prompt_logprobs: list[Any] | None) -> None:
        """Beside the same step's :meth:`put`, for a request that asked for them."""
        self.logprobs += [TokenLogprob.from_wire(entry) for entry in logprobs or ()]
        if prompt_logprobs is not None:
            self.prompt_logprobs = tuple(TokenLogprob.from_wire(entry) for entry in prompt_logprobs)

    def fail(self, error: InferenceError) -> None:
        self.error = error
        self._event.set()

    async def take(self) -> tuple[list[int], FinishReason | None]:
        """At least one token, and the reason if they are the last; raises what the request failed with."""
        await self._event.wait()
        self._event.clear()
        if not self.tokens and self.error is not None:
            raise self.error
        tokens, self.tokens = self.tokens, []
        if self.error is not None:
            self._event.set()  # the tokens first, then the error
        return tokens, self.finish


class CoreLink:
    """One core process. Build with :meth:`start`; everything runs in one event loop.

    :ivar ready: what the core can do.
    :ivar stats: its state after the last step; ``last_step`` is when a computed one was last heard of (monotonic
        seconds), ``busy_since`` when the front last had nothing there.
    :ivar dead: set when the core has gone; every stream and call has then failed with :class:`EngineDead`.
    """

    ready: Ready

    def __init__(self) -> None:
        self.stats = Stats(0, 0, 0, 0, 0, 0, 0, 0, [], [], [], [], 0.0, 0, 0)
        self.last_step = self.busy_since = float("-inf")
        self.dead = asyncio.Event()
        self._inboxes: dict[str, TokenInbox] = {}
        self._calls: dict[int, asyncio.Future[None]] = {}
        self._next_call = 0
        self._closing = False
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    async def start(cls, command: Sequence[str]) -> CoreLink:
        """Run ``command --socket PATH`` and wait until it is ready; raises :class:`ConfigError` if it gives up."""
        link = cls()
        connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if connected.done():
                writer.close()
            else:
                connected.set_result((reader, writer))

        # A directory that only this user can enter (mode 0700).
        with TemporaryDirectory(prefix="loraplex-core-") as directory:
            path = Path(directory) / "core.sock"
            server = await asyncio.start_unix_server(accept, path)
            process = await asyncio.create_subprocess_exec(*command, "--socket", str(path))
            link._process = process
            exited = asyncio.ensure_future(process.wait())
            try:
                both: set[asyncio.Future[Any]] = {connected, exited}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                process.kill()
                raise
            finally:
                server.close()
            if not connected.done():
                raise ConfigError(f"the core did not start (exit status {exited.result()}); its log says why")
        reader, link._writer = connected.result()
        try:
            first = await _receive(reader)
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            raise ConfigError("the core stopped before it was ready; its log says why") from error
        if not isinstance(first, Ready):
            raise ConfigError("the core did not introduce itself")
        link.ready = first
        link._reading = asyncio.create_task(link._read(reader))
        return link

    def submit(self, message: Submit) -> TokenInbox:
        """Queue a request; raises :class:`EngineDead`. End it with :meth:`abort`, unless the core has."""
        # Registered only once it is on its way: a message that cannot be written must not count as running.
        self._send(message)
        if not self._inboxes:
            self.busy_since = time.monotonic()
        inbox = self._inboxes[message.request_id] = TokenInbox()
        return inbox

    def abort(self, request_id: str) -> None:
        """Nobody wants the rest. Harmless when the request has ended."""
        if self._inboxes.pop(request_id, None) is not None:
            with contextlib.suppress(EngineDead):
                self._send(Abort(request_id))

    def abandon(self, message: str) -> None:
        """End every request that still runs with an error."""
        for request_id, inbox in list(self._inboxes.items()):
            self.abort(request_id)
            inbox.fail(EngineDead(message))

    @property
    def active(self) -> int:
        """Requests that the core has not ended."""
        return len(self._inboxes)

    async def load_adapter(self, digest: str, path: str | None) -> None:
        """Make it resident; raises what is wrong with it."""
        if not self.ready.num_slots:
            raise InvalidRequest(NO_SLOTS, "lora_name")
        await self._call(lambda call: LoadAdapter(call, digest, path))

    async def unload_adapter(self, digest: str) -> None:
        await self._call(lambda call: UnloadAdapter(call, digest))

    async def declare_prefix(self, name: str, adapter: str | None, tokens: list[int]) -> None:
        """Let all tenants reuse what is computed of these tokens."""
        await self._call(lambda call: DeclarePrefix(call, name, adapter, tokens))

    async def withdraw_prefix(self, name: str) -> None:
        await self._call(lambda call: WithdrawPrefix(call, name))

    async def probe(self) -> None:
        """One real forward step; raises if it fails."""
        await self._call(Probe)

    async def close(self) -> int:
        """End the connection, upon which the core leaves; its exit status. A core that hangs is killed."""
        self._closing = True
        if self._writer is not None:
            self._writer.close()
        if self._process is None:
            return 0
        try:
            return await asyncio.wait_for(self._process.wait(), 5.0)
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()
        finally:
            if self._reading is not None:
                self._reading.cancel()

    async def _call(self, message: Any) -> None:
        self._next_call += 1
        call = self._next_call
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        try:
            self._send(message(call))
            await future
        finally:
            self._calls.pop(call, None)

    def _send(self, message: Message) -> None:
        if self.dead.is_set() or self._writer is None:
            raise EngineDead("The worker's core has stopped")
        self._writer.write(encode(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                message = await _receive(reader)
                if isinstance(message, Step):
                    self._on_step(message)
                elif isinstance(message, Reply) and (future := self._calls.get(message.call)) is not None:
                    if future.done():
                        continue  # its caller was cancelled a moment ago
                    if message.error is None:
                        future.set_result(None)
                    else:
                        future.set_exception(_error(message.error, message.message, message.param))
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            if not self._closing:
                log.error("the core has gone: %s", type(error).__name__)
        finally:
            self._die()

    def _on_step(self, step: Step) -> None:
        stats = Stats(*step.stats)
        if stats.steps != self.stats.steps:
            self.last_step = time.monotonic()
        self.stats = stats
        inboxes = self._inboxes
        for request_id, waited in step.started:
            if (inbox := inboxes.get(request_id)) is not None:
                inbox.waited = waited
        for request_id, tokens, finish, cached_tokens, *logprobs in step.gained:
            inbox = inboxes.get(request_id)
            if inbox is not None:
                inbox.put(tokens, finish, cached_tokens)
                if logprobs:
                    inbox.put_logprobs(*logprobs)
                if finish is not None:
                    del inboxes[request_id]
        for request_id, name, message, param, retry_after in step.failed:
            inbox = inboxes.pop(request_id, None)
            if inbox is not None:
                inbox.fail(_error(name, message, param, retry_after))

    def _die(self) -> None:
        self.dead.set()
        error = EngineDead("The worker's core has stopped")
        for inbox in self._inboxes.values():
            inbox.fail(error)
        self._inboxes.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)


async def _receive(reader: asyncio.StreamReader) -> Message:
    length = int.from_bytes(await reader.readexactly(4), "little")
    if length > MAX_FRAME_BYTES:
        raise ValueError("a broken frame from the core")
    return decode(await reader.readexactly(length))


def _error(name: str, message: str, param: str | None, retry_after: float | None = None) -> InferenceError:
    """The error that the core named."""
    if name == "InvalidRequest":
        return errors.InvalidRequest(message, param)
    if name == "AdapterInvalid":
        return errors.AdapterInvalid(message, param)
    if name == "Overloaded" and retry_after is not None:
        return errors.Overloaded(message, retry_after)
    kind: type[InferenceError] = getattr(errors, name, InferenceError)
    return kind(message)
