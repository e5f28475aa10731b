"""Sessions of ``/v1/ws``: what lets a client go on after a lost connection without losing or repeating a token.

A session numbers its frames and keeps each until the client has acknowledged it, so nothing that may be lost is ever
dropped. While a client is connected, requests wait once too much is unacknowledged; while none is, the session ends
there, as it does when nobody came back within the grace period: its requests are stopped and billed as those of a
client that left.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter, deque
from typing import Protocol
from uuid import UUID

from django.conf import settings

from gateway import frames
from gateway.conversation import Conversation
from gateway.errors import ApiError, bad_request
from gateway.handover import Handover, Wire
from gateway.services import Services
from tenants.access import Access

STALL_SECONDS = 60.0
"""A client that reads or acknowledges nothing for so long counts as gone."""

FRAME_OVERHEAD = 64
"""Bytes that a kept frame counts beside its own."""

FRAMES_AT_ONCE = 32
"""So many go to a line that takes them all before the loop's other work has its turn."""

MOST_SESSIONS_OF_ONE_TENANT = 1024


class Line(Protocol):
    """One connection to a client."""

    async def put_text(self, text: str) -> None:
        """Raises ``OSError`` when the client is gone, or reads nothing for :data:`STALL_SECONDS`."""

    async def shut(self, code: int, reason: str) -> None:
        """Close it. Never raises; may wait for a client that reads nothing."""


class Session:
    """An :class:`~gateway.conversation.Outlet` that outlives its connections.

    :ivar seq: number of the last frame.
    :ivar size: bytes that are kept.
    """

    def __init__(self, sessions: Sessions, services: Services, access: Access) -> None:
        self.id = f"{sessions.holder}.{secrets.token_urlsafe(24)}"
        self.key_id = access.key_id
        self.tenant_id = access.tenant_id
        self.conversation = Conversation(services, self)
        self.seq = 0
        self.size = 0
        self.ended = False
        self._sessions = sessions
        self._services = services
        self._kept: deque[tuple[int, bytes]] = deque()  # not acknowledged
        self._unsent: deque[tuple[int, bytes]] = deque()  # of those, what the present line has not been given
        self._sent = 0
        self._line: Line | None = None
        self._delivery: asyncio.Task[None] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._line is not None

    # What requests do -------------------------------------------------------------------------------------------------

    async def put(self, frame: bytes) -> None:
        """Raises ``OSError`` when the session has ended."""
        # Half is left for what comes while the connection is lost.
        while self.connected and not self.ended and self._full(frame, settings.RESUME_BYTES // 2):
            self._room.clear()
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                self.end(frames.TOO_SLOW, "nothing was acknowledged")
        self.put_now(frame)

    def put_now(self, frame: bytes) -> None:
        """As :meth:`put`, for whoever reads the acknowledgements and so must not wait for them."""
        size = len(frame) + FRAME_OVERHEAD
        if not self.ended and (self._full(frame, settings.RESUME_BYTES) or not self._sessions.take(self, size)):
            self.end(frames.TOO_SLOW, "too much was not acknowledged")
        if self.ended:
            raise ConnectionResetError("the session has ended")
        self.seq += 1
        self.size += size
        numbered = (self.seq, frame)
        self._kept.append(numbered)
        self._unsent.append(numbered)
        self._news.set()

    def is_on(self, line: Line) -> bool:
        """``line`` is its present connection, and it has not ended."""
        return self._line is line

    def _full(self, frame: bytes, most: int) -> bool:
        return bool(self._kept) and self.size + len(frame) + FRAME_OVERHEAD > most

    # What connections do ---------------------------------------------------------------------------------------------

    def acknowledge(self, seq: int) -> None:
        """Forget what has arrived. Raises :class:`~gateway.errors.ApiError` for a frame that was never sent."""
        if seq > self._sent:
            raise bad_request(f"seq: frame {seq} was not sent yet; the last one is {self._sent}.", "seq")
        freed = 0
        while self._kept and self._kept[0][0] <= seq:
            freed += len(self._kept.popleft()[1]) + FRAME_OVERHEAD
        self.size -= freed
        self._sessions.give(self, freed)
        if freed:  # repeating an old number is no sign of life
            self._room.set()

    def attach(self, line: Line, seq: int, greeting: str) -> None:
        """From now on frames after ``seq`` go to ``line``, after ``greeting``; the connection before, dead or alive, is
        let go.

        Raises :class:`~gateway.errors.ApiError` when those are not all kept, or ``seq`` was never sent.
        """
        if seq < self.seq - len(self._kept):
            raise bad_request(f"seq: frames after {seq} were acknowledged and are not kept any more.", "seq")
        self.acknowledge(seq)
        before = self._release()
        if before is not None:
            self._services.spawn(before.shut(frames.TAKEN_OVER, "the session was resumed on another connection"))
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._line = line
        self._room.set()  # whoever waits for acknowledgements has as long again
        self._unsent = deque(self._kept)
        self._delivery = asyncio.create_task(self._deliver(line, greeting))

    def detach(self, line: Line) -> None:
        """``line`` is gone; somebody may come back within the grace period. Nothing happens if it had been replaced."""
        if self._line is line:
            self._release()
            self._room.set()  # whoever waits for acknowledgements has to decide anew
            loop = asyncio.get_running_loop()
            self._grace = loop.call_later(settings.RESUME_SECONDS, self.end, frames.SESSION_ENDED, "nobody came back")

    def end(self, code: int, reason: str) -> None:
        """Stop its requests and forget it."""
        if self.ended:
            return
        self.ended = True
        self._sessions.forget(self)
        line = self._release()
        if self._grace is not None:
            self._grace.cancel()
        self._kept.clear()
        self._unsent.clear()
        self._room.set()
        self._services.spawn(self.conversation.end())
        if line is not None:
            self._services.spawn(line.shut(code, reason))

    async def delivered(self, seconds: float) -> None:
        """Wait until the present line has been given everything, but not longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._unsent and self.connected:
                    self._idle.clear()
                    await self._idle.wait()

    def _release(self) -> Line | None:
        line, self._line = self._line, None
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        self._idle.set()
        return line

    async def _deliver(self, line: Line, greeting: str) -> None:
        try:
            await line.put_text(greeting)
            while True:
                while self._unsent:
                    seq, frame = self._unsent[0]
                    self._sent = max(self._sent, seq)  # from here on it may have arrived
                    await line.put_text(frames.numbered(frame, seq).decode())
                    self._unsent.popleft()
                    if seq % FRAMES_AT_ONCE == 0:
                        await asyncio.sleep(0)
                self._idle.set()
                self._news.clear()
                await self._news.wait()
        except OSError:
            self._delivery = None
            self.detach(line)
            self._services.spawn(line.shut(frames.TOO_SLOW, "the client reads nothing"))


class Sessions:
    """All sessions of one gateway process.

    :ivar holder: names this process in the ids of its sessions. :ivar handover: the way to other processes'.
    """

    def __init__(self, services: Services) -> None:
        self.holder = secrets.token_hex(4)
        self.handover: Handover | None = None
        self._services = services
        self._known: dict[str, Session] = {}  # in the order in which they began
        self._bytes: Counter[UUID] = Counter()
        self._of_tenant: Counter[UUID] = Counter()

    def open(self, access: Access) -> Session:
        """Raises :class:`~gateway.errors.ApiError` 429 when the tenant has too many."""
        if self._of_tenant[access.tenant_id] >= MOST_SESSIONS_OF_ONE_TENANT and not self._end_waiting(access.tenant_id):
            message = f"A tenant has at most {MOST_SESSIONS_OF_ONE_TENANT} sessions at once."
            raise ApiError(429, "concurrency_limit_exceeded", message, retry_after=1.0)
        session = Session(self, self._services, access)
        self._known[session.id] = session
        self._of_tenant[access.tenant_id] += 1
        return session

    async def elsewhere(self, session_id: str, access: Access) -> Wire | None:
        """A wire to the process that holds the session, where that is another one that can be reached."""
        holder = session_id.partition(".")[0]
        if self.handover is None or holder == self.holder:
            return None
        return await self.handover.reach(holder, access)

    def find(self, session_id: str, key_id: int) -> Session:
        """The key's own session. Raises :class:`~gateway.errors.ApiError` 404, also for somebody else's."""
        session = self._known.get(session_id)
        if session is None or session.key_id != key_id:
            raise unknown_session()
        return session

    def take(self, session: Session, size: int) -> bool:
        """Count ``size`` more bytes for the session's tenant. Where that is too much, sessions that wait for their
        client end, the oldest first, then those that keep most; ``False`` if that is this one.
        """
        while self._bytes[session.tenant_id] + size > settings.RESUME_TENANT_BYTES:
            if self._end_waiting(session.tenant_id, but=session):
                continue
            ours = (one for one in self._known.values() if one.tenant_id == session.tenant_id)
            most = max(ours, key=lambda one: (one.size, one is session), default=session)
            if most is session or not session.connected:
                return False
            most.end(frames.TOO_SLOW, "too much was not acknowledged")
        self._bytes[session.tenant_id] += size
        return True

    def give(self, session: Session, size: int) -> None:
        self._bytes[session.tenant_id] -= size
        if self._bytes[session.tenant_id] <= 0:
            del self._bytes[session.tenant_id]

    def forget(self, session: Session) -> None:
        if self._known.pop(session.id, None) is not None:
            self.give(session, session.size)
            session.size = 0
            self._of_tenant[session.tenant_id] -= 1
            if not self._of_tenant[session.tenant_id]:
                del self._of_tenant[session.tenant_id]

    def _end_waiting(self, tenant_id: UUID, but: Session | None = None) -> bool:
        for session in self._known.values():
            if session.tenant_id == tenant_id and not session.connected and session is not but:
                session.end(frames.SESSION_ENDED, "its place was needed")
                return True
        return False


def unknown_session() -> ApiError:
    return ApiError(404, "session_not_found", "There is no such session, or it has ended.", "session")
