"""Where the embedded servers' Unix sockets lie."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

# sun_path holds 108 bytes on Linux and 104 on macOS, with the closing zero.
LONGEST_PATH = 103
POSTGRES_SOCKET = "pg/.s.PGSQL.5432"
VALKEY_SOCKET = "valkey.sock"


def socket_dir(data_dir: Path) -> Path:
    """``data_dir/run``, or a folder in the temporary directory named after a hash of it where that is too long.

    Deterministic for one user and data directory, whoever asks.
    """
    run = data_dir.resolve() / "run"
    if len(os.fsencode(run / POSTGRES_SOCKET)) <= LONGEST_PATH:
        return run
    digest = hashlib.sha256(os.fsencode(run)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"loraplex-{os.getuid()}-{digest}"


def make_socket_dir(data_dir: Path) -> Path:
    """Make it, and refuse one that somebody else made first (the temporary directory is everybody's).

    Raises ``PermissionError``.
    """
    folder = socket_dir(data_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else") from None
    return folder


def postgres_dsn(data_dir: Path, database: str = "loraplex") -> str:
    """libpq connection string of the embedded PostgreSQL."""
    return f"host={_quoted(str(socket_dir(data_dir) / 'pg'))} user=postgres dbname={database}"


def redis_url(data_dir: Path) -> str:
    return f"unix://{socket_dir(data_dir) / VALKEY_SOCKET}"


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
