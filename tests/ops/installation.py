"""A whole installation as ``manage.py up --demo`` runs it: its processes, its address, its end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
MANAGE = PROJECT / "manage.py"
READY = "Ctrl-C stops everything."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(data_dir: Path, port: int) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")}
    return env | {"LORAPLEX_DATA_DIR": str(data_dir), "PORT": str(port), "OMP_NUM_THREADS": "1"}


def until(done: Callable[[], object], seconds: float, what: str, pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(pause)


def family(data_dir: Path) -> dict[int, str]:
    """Every living process that belongs to the installation in ``data_dir``, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            about = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if os.fsencode(data_dir) in about and state != "Z":
            found[int(entry.name)] = command
    return found


@dataclass
class Up:
    data_dir: Path
    port: int
    out: Path
    process: subprocess.Popen[bytes]

    @property
    def demo(self) -> dict[str, Any]:
        return json.loads((self.data_dir / "demo.json").read_text())

    def pid_of(self, part: str) -> int:
        return min(pid for pid, command in family(self.data_dir).items() if part in command)

    def manage(self, *arguments: str) -> str:
        """What a management command prints. Fails where its exit status is not 0."""
        command, env = [sys.executable, str(MANAGE), *arguments], environment(self.data_dir, self.port)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def said(self, line: str) -> int:
        """How often ``up`` has printed it."""
        return self.out.read_text().count(line)

    def get(self, path: str, key: str | None = None) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


def start(data_dir: Path, *options: str, script: Path = MANAGE, **settings: str) -> Up:
    """:param script: for ``manage.py``. :param settings: environment variables beside those of every installation."""
    port, out = free_port(), data_dir.parent / f"up-{time.monotonic_ns()}.out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(script), "up", "--demo", *options],
            env=environment(data_dir, port) | settings,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    up = Up(data_dir, port, out, process)
    try:
        until(lambda: READY in out.read_text() or process.poll() is not None, 240, f"ready; {out.read_text()}")
        assert process.poll() is None, out.read_text()
    except BaseException:
        process.terminate()
        process.wait(60)
        raise
    return up
