from __future__ import annotations

import contextlib

import orjson
from django.conf import settings

from gateway import frames
from gateway.auth import Credential
from gateway.bodies import LARGE_BYTES, turn
from gateway.conversation import Conversation
from gateway.errors import ApiError, bad_request, error_of
from gateway.frames import Frame
from gateway.handover import Wire
from gateway.services import Services
from gateway.sessions import Line, Session, Sessions
from tenants.access import Access
from tenants.errors import InvalidKey

MOST_WRONG_FRAMES = 32


async def answer_wire(services: Services, sessions: Sessions, wire: Wire, credential: Credential) -> None:
    """Serve a connection that another process passes on."""
    dialogue = Dialogue(services, sessions, wire, credential)
    try:
        await dialogue.open()
        while (message := await wire.receive()) is not None:
            await dialogue.receive(message[1])
    finally:
        await dialogue.gone()


class Dialogue:
    """What is said on one connection: the client's frames in, the answers out.

    Without a session its requests end with it; with one they wait there for the client's next connection.

    :param line: the connection. :param credential: what the client came with.
    """

    def __init__(self, services: Services, sessions: Sessions, line: Line, credential: Credential) -> None:
        self.key_id = 0
        self.credential = credential
        self._services = services
        self._sessions = sessions
        self._line = line
        self._conversation = Conversation(services, self)
        self._session: Session | None = None
        self._wire: Wire | None = None  # to the process that holds the session, if that is not this one
        self._begun = False
        self._wrong = 0

    async def open(self) -> None:
        """Raises :class:`~tenants.errors.InvalidKey` and whatever else :meth:`KeyCache.access` raises."""
        self.key_id = (await self._access()).key_id

    async def put(self, frame: bytes) -> None:
        await self._line.put_text(frame.decode())

    async def receive(self, text: str) -> None:
        """Answer one frame; raises ``OSError`` when nobody takes the answer."""
        if self._wire is not None:
            await self._wire.put_text(text)
            return
        identity = frames.identity_ahead(text) if len(text) >= LARGE_BYTES else None  # it may be refused unread
        misuse = False  # refusing a request is none: others may be running on the socket
        try:
            identity, frame = await self._read(text)
            if isinstance(frame, ApiError):
                misuse = True
                raise frame
            self._wrong = 0
            await self._act(frame, text)
        except InvalidKey as error:
            await self._refuse(identity, error)
            await self._line.shut(frames.KEY_INVALID, "the key is no longer valid")
        except OSError:
            raise
        except Exception as error:
            await self._refuse(identity, error)
            self._wrong += misuse
            if self._wrong > MOST_WRONG_FRAMES:
                await self._line.shut(frames.WRONG_FRAMES, "too many wrong frames")

    async def gone(self) -> None:
        """The connection is lost."""
        if self._wire is not None:
            self._wire.close()
        elif self._session is not None:
            self._session.detach(self._line)
        else:
            await self._conversation.end()

    async def delivered(self, seconds: float) -> None:
        """Wait until the client was sent everything that its requests have to say, but not longer."""
        await self._running.last_words(seconds)
        if self._session is not None:
            await self._session.delivered(seconds)

    async def _act(self, frame: Frame, text: str) -> None:
        match frame.kind:
            case "ping":
                await self._line.put_text('{"type":"pong"}')
            case "cancel":
                self._running.cancel(frame.identity)
            case "ack":
                if self._session is None:
                    raise bad_request("Without a session there is nothing to acknowledge.", "type")
                self._session.acknowledge(frame.seq)
            case "session" | "resume":
                await self._begin_session(frame, text)
            case _:
                access = await self._access()
                async with turn(self._services.pool, access, len(text)):
                    self._check_line()  # waiting may have taken long
                    self._running.begin(frame.identity, access, frame.body)
                self._begun = True

    async def _read(self, text: str) -> tuple[str | None, Frame | ApiError]:
        """The frame, or what is wrong with it, and its ``id``."""
        if len(text) < LARGE_BYTES:
            return _read(text)
        async with turn(self._services.pool, await self._access(), len(text)):
            return _read(text)

    @property
    def _running(self) -> Conversation:
        return self._conversation if self._session is None else self._session.conversation

    async def _begin_session(self, frame: Frame, text: str) -> None:
        if self._begun or self._session is not None:
            raise bad_request("A session begins or resumes before the first request of a connection.", "type")
        if not settings.RESUME_SECONDS:
            raise bad_request("This server keeps no sessions.", "type", "unsupported_parameter")
        access = await self._access()
        resumed = frame.kind == "resume"
        if resumed:
            self._wire = await self._sessions.elsewhere(frame.session, access)
            if self._wire is not None:
                self._services.spawn(self._pass_back(self._wire))
                await self._wire.put_text(text)
                return
            session = self._sessions.find(frame.session, access.key_id)
        else:
            session = self._sessions.open(access)
        greeting = {
            "type": "session",
            "session": session.id,
            "resumed": resumed,
            "seq": session.seq,
            "requests": session.conversation.running,
            "resume_seconds": settings.RESUME_SECONDS,
        }
        session.attach(self._line, frame.seq, orjson.dumps(greeting).decode())
        self._session = session

    async def _pass_back(self, wire: Wire) -> None:
        """What the other process says, until it or the client is gone."""
        with contextlib.suppress(OSError):
            while (message := await wire.receive()) is not None:
                closed, text = message
                if closed:
                    code, _, reason = text.partition(" ")
                    await self._line.shut(int(code), reason)
                    return
                await self._line.put_text(text)
        wire.close()
        await self._line.shut(frames.GOING_AWAY, "the process that held the session is gone")

    def _check_line(self) -> None:
        """Raises ``OSError`` where the session goes on elsewhere, or nowhere: its client does not count on this
        connection any more, and may have asked again.
        """
        if self._session is not None and not self._session.is_on(self._line):
            raise ConnectionResetError("the session is not on this connection any more")

    async def _refuse(self, identity: str | None, error: Exception) -> None:
        self._check_line()
        if identity in self._running.running:
            identity = None  # an error with it would be the last frame of the request that goes on
        frame = frames.of_error(identity, error_of(error))
        if identity is None or self._session is None:
            await self.put(frame)
        else:
            with contextlib.suppress(OSError):  # it may have ended; then its connection is being closed
                self._session.put_now(frame)

    async def _access(self) -> Access:
        return await self._services.keys.of(self.credential)


def _read(text: str) -> tuple[str | None, Frame | ApiError]:
    try:
        frame = frames.read(text)
    except ApiError as error:
        return frames.identity_of(text), error
    return frame.identity or None, frame
