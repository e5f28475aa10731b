"""Between the gateway processes of one machine: a socket that resumes another process's session is passed on to it.

Processes share one port, so a client's next connection may come to any of them. A session's id names the process that
holds it; whoever gets the connection passes its frames on over a Unix socket in the installation's own folder, which
nobody else may enter. Messages are a length, a kind and a text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
from django.conf import settings

from gateway.auth import Credential
from gateway.embedded.sockets import make_socket_dir
from gateway.errors import error_of
from tenants.access import Access
from tenants.visits import Visit

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
STALL_SECONDS = 60.0

_HEAD = struct.Struct("!Ic")
_TEXT, _CLOSE = b"t", b"c"
_HOLDER = re.compile(r"[0-9a-f]{8}")


class Wire:
    """One connection between two processes; to the holder it is the :class:`~gateway.sessions.Line` to the client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def put_text(self, text: str) -> None:
        """Raises ``OSError`` when the other side is gone, or takes nothing for :data:`STALL_SECONDS`."""
        await self._put(_TEXT, text)

    async def shut(self, code: int, reason: str) -> None:
        with contextlib.suppress(OSError):
            await self._put(_CLOSE, f"{code} {reason}")
            self.close()

    def close(self) -> None:
        self._writer.close()

    async def receive(self) -> tuple[bool, str] | None:
        """A text, or, with ``True``, code and reason of a close; ``None`` once the other side is gone."""
        try:
            size, kind = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            return kind == _CLOSE, (await self._reader.readexactly(size)).decode()
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def _put(self, kind: bytes, text: str) -> None:
        data = text.encode(errors="replace")
        try:
            self._writer.write(_HEAD.pack(len(data), kind) + data)
        except RuntimeError as error:  # uvloop's word for a connection that is closed
            raise ConnectionResetError("the wire is closed") from error
        async with asyncio.timeout(STALL_SECONDS):
            await self._writer.drain()


Answer = Callable[[Wire, Credential], Awaitable[None]]
"""Serves a wire until it ends, for whoever came with this."""


class Handover:
    """One process's door for the others.

    :param holder: this process, as its sessions' ids name it.
    """

    def __init__(self, holder: str, answer: Answer) -> None:
        self.holder = holder
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(self) -> None:
        """Goes on without when the folder cannot be used; sessions then go on only where they began."""
        try:
            folder = make_socket_dir(settings.DATA_DIR)
            self._path = _path(folder, self.holder)
            self._server = await asyncio.start_unix_server(self._serve, self._path)
            await _sweep(folder)
        except OSError as error:
            logger.warning("sockets cannot be passed on between processes: %s", error)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def reach(self, holder: str, access: Access) -> Wire | None:
        """A wire to another process, on behalf of whoever has this access; ``None``: there is no such process.

        :param holder: as the client says; believed only as far as there is a process of this name.
        """
        if not _HOLDER.fullmatch(holder):
            return None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                path = _path(make_socket_dir(settings.DATA_DIR), holder)
                wire = Wire(*await asyncio.open_unix_connection(path))
                await wire.put_text(_introduction(access))
        except OSError:
            return None
        return wire

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer)
        try:
            first = await wire.receive()
            if first is not None:
                await self._answer(wire, _introduced(first[1]))
        except OSError:
            pass  # the client left
        except Exception as error:
            found = error_of(error)
            await wire.shut(1011 if found.status >= 500 else 4401, str(found))
        finally:
            wire.close()


def _introduction(access: Access) -> str:
    """Who is passed on."""
    visit = None if access.visit is None else [access.visit.session, access.visit.password.hex()]
    return orjson.dumps([access.key_id, access.address, visit]).decode()


def _introduced(text: str) -> Credential:
    key_id, address, visit = orjson.loads(text)
    return Credential(key_id, address, None if visit is None else Visit(visit[0], bytes.fromhex(visit[1])))


def _path(folder: Path, holder: str) -> Path:
    return folder / f"ws-{holder}.sock"


async def _sweep(folder: Path) -> None:
    """Remove what killed processes left."""
    for path in await asyncio.to_thread(lambda: list(folder.glob("ws-*.sock"))):
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_unix_connection(path)
            writer.close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            continue
