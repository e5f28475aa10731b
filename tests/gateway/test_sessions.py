"""What is said on one connection, and what outlives it: without sockets, workers or a database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
import uvloop

from gateway import bodies, frames
from gateway import sessions as sessions_module
from gateway.auth import Credential
from gateway.bodies import LARGE_BYTES
from gateway.conversation import Conversation
from gateway.dialogue import Dialogue
from gateway.errors import ApiError, overloaded
from gateway.handover import Wire
from gateway.services import Services
from gateway.sessions import Session, Sessions
from tenants.access import Access

CHUNK = b'{"type":"chunk"}'


def some_access() -> Access:
    return Access(key_id=1, tenant_id=uuid4(), tenant="acme", member_id=None, models={})


def idle_services(access: Access) -> Services:
    """Services that ask no database: whoever comes has this access."""
    services = Services(cast(Any, None), cast(Any, None))

    async def of(credential: Credential) -> Access:
        return access

    services.keys.of = of  # type: ignore[method-assign]
    return services


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


class Line:
    """A client that takes everything at once."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.codes: list[int] = []

    async def put_text(self, text: str) -> None:
        self.frames.append(json.loads(text))

    async def shut(self, code: int, reason: str) -> None:
        self.codes.append(code)


class Client:
    """:ivar line: its connection."""

    def __init__(self, services: Services, sessions: Sessions) -> None:
        self.line = Line()
        self._dialogue = Dialogue(services, sessions, self.line, Credential(1, None))

    async def say(self, **frame: Any) -> None:
        await self._dialogue.receive(json.dumps(frame))


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that say nothing until they are cancelled."""

    async def serve(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.conversation.serve", serve)


def large_request(identity: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "x" * LARGE_BYTES}]
    return {"type": "request", "id": identity, "body": {"model": "m", "messages": messages}}


async def test_a_connection_that_was_taken_over_begins_nothing(endless: None) -> None:
    """Its client was told that the request never arrived, and asks again."""
    access = some_access()
    services = idle_services(access)
    sessions = Sessions(services)
    first, second = Client(services, sessions), Client(services, sessions)
    await first.say(type="session")
    await until(lambda: first.line.frames)
    name = first.line.frames[0]["session"]
    async with bodies.turn(cast(Any, None), access, LARGE_BYTES):
        waits = asyncio.create_task(first.say(**large_request("a")))
        await asyncio.sleep(0)
        await second.say(type="resume", session=name, seq=0)
        await until(lambda: second.line.frames)
        assert second.line.frames[0]["requests"] == []
    with pytest.raises(ConnectionResetError):
        await waits
    conversation = sessions.find(name, 1).conversation
    assert conversation.running == []
    await second.say(**large_request("a"))
    assert conversation.running == ["a"]
    await conversation.end()


async def test_large_requests_refused_unread_are_named_and_no_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def full(pool: Any, access: Access, size: int) -> AsyncIterator[None]:
        raise overloaded("Too many of your requests are waiting; try again shortly.", 1.0)
        yield

    monkeypatch.setattr("gateway.dialogue.turn", full)
    services = idle_services(some_access())
    client = Client(services, Sessions(services))
    for _ in range(40):
        await client.say(**large_request("a"))
    assert {(frame["id"], frame["error"]["code"], frame["retry_after_ms"]) for frame in client.line.frames} == {
        ("a", "overloaded", 1000)
    }
    assert client.line.codes == []
    for _ in range(33):
        await client.say(type="subscribe")
    assert client.line.codes == [frames.WRONG_FRAMES]


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ('{"type":"request","id":"a","body":{}}', "a"),
        (' { "type" : "request" , "id" : "a\\u0062\\"" }', 'ab"'),
        ('{"type":"request","id":"' + "x" * 64 + '","body":', "x" * 64),
        ('{"type":"request","id":"' + "x" * 65 + '","body":', None),
        ('{"type":"request","id":"","body":', None),
        ('{"type":"request","id":"\\ud800","body":', None),
        ('{"type":"request","id":"a\n","body":', None),
        ('{"type":"request","id":5,"body":', None),
        ('{"type":"cancel","id":"a"}', None),
        ('{"type":"request","body":{"id":"a"}}', None),
        (" " * 5000 + '{"type":"request","id":"a","body":{}}', None),
        ("[]", None),
    ],
)
def test_the_id_of_a_frame_that_is_not_read(text: str, identity: str | None) -> None:
    assert frames.identity_ahead(text) == identity


def test_errors_say_when_to_try_again() -> None:
    said = json.loads(frames.of_error("a", overloaded("busy", 0.25)))
    assert (said["id"], said["retry_after_ms"]) == ("a", 250)
    assert "retry_after_ms" not in json.loads(frames.of_error("a", ApiError(404, "model_not_found", "no")))


async def test_cancelling_twice_does_not_swallow_the_last_word(endless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Outlet:
        """One with no room."""

        def __init__(self) -> None:
            self.frames: list[bytes] = []
            self.room = asyncio.Event()
            self.waits = False

        async def put(self, frame: bytes) -> None:
            self.waits = True
            await self.room.wait()
            self.frames.append(frame)

    outlet = Outlet()
    access = some_access()
    conversation = Conversation(idle_services(access), outlet)
    conversation.begin("a", access, large_request("a")["body"])
    await asyncio.sleep(0)
    conversation.cancel("a")
    await until(lambda: outlet.waits)
    conversation.cancel("a")
    await asyncio.sleep(0)
    outlet.room.set()
    await until(lambda: not conversation.running)
    assert outlet.frames == [frames.of_done("a", cancelled=True)]


# Sessions -------------------------------------------------------------------------------------------------------------


def begun(sessions: Sessions, access: Access, line: Line) -> Session:
    session = sessions.open(access)
    session.attach(line, 0, "{}")
    return session


async def test_replaying_a_session_leaves_turns_to_others() -> None:
    access = some_access()
    session = Sessions(idle_services(access)).open(access)
    for _ in range(500):
        session.put_now(CHUNK)
    line = Line()
    session.attach(line, 0, "{}")
    await asyncio.sleep(0)
    assert 0 < len(line.frames) <= 1 + sessions_module.FRAMES_AT_ONCE
    await until(lambda: len(line.frames) == 501)
    assert [frame["seq"] for frame in line.frames[1:]] == list(range(1, 501))
    session.end(frames.SESSION_ENDED, "the test is over")


async def test_who_acknowledges_everything_does_not_pay_for_who_does_not(settings: Any) -> None:
    settings.RESUME_BYTES, settings.RESUME_TENANT_BYTES = 20_000, 12_000
    access = some_access()
    sessions = Sessions(idle_services(access))
    lines = [Line() for _ in range(3)]
    keeps_most, keeps_less, acknowledges = (begun(sessions, access, line) for line in lines)
    frame = b'{"type":"chunk","data":"' + b"x" * 1000 + b'"}'
    for session, times in ((keeps_most, 6), (keeps_less, 4)):
        for _ in range(times):
            await session.put(frame)
    for number in range(1, 50):
        await acknowledges.put(frame)
        await until(lambda number=number: len(lines[2].frames) > number)  # type: ignore[misc]
        if number % 4 == 0:
            acknowledges.acknowledge(number)
    assert [session.ended for session in (keeps_most, keeps_less, acknowledges)] == [True, False, False]
    await until(lambda: lines[0].codes == [frames.TOO_SLOW])
    for session in (keeps_less, acknowledges):
        session.end(frames.SESSION_ENDED, "the test is over")


async def test_repeating_an_old_acknowledgement_is_no_sign_of_life(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RESUME_BYTES = 400
    monkeypatch.setattr(sessions_module, "STALL_SECONDS", 0.2)
    access = some_access()
    line = Line()
    session = begun(Sessions(idle_services(access)), access, line)

    async def puts() -> None:
        while True:
            await session.put(CHUNK)

    putting = asyncio.create_task(puts())
    try:
        async with asyncio.timeout(5.0):
            while not putting.done():
                session.acknowledge(0)
                await asyncio.sleep(0.02)
        with pytest.raises(ConnectionResetError):
            await putting
    finally:
        putting.cancel()
    await until(lambda: line.codes == [frames.TOO_SLOW])


def test_a_closed_wire_is_a_client_that_left(tmp_path: Path) -> None:
    """Also for uvloop, on which gateways run and which has its own word for it."""

    async def write_behind_a_close() -> None:
        server = await asyncio.start_unix_server(lambda reader, writer: None, tmp_path / "wire.sock")
        wire = Wire(*await asyncio.open_unix_connection(tmp_path / "wire.sock"))
        wire.close()
        await wire._writer.wait_closed()
        for _ in range(5):
            with pytest.raises(OSError, match=r"closed|lost"):
                await wire.put_text("too late")
            await asyncio.sleep(0.01)
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write_behind_a_close())
