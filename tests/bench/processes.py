"""Start a server, wait for its ready line, stop it: by the process that was started and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def own_settings(data_dir: Path, **more: str) -> dict[str, str]:
    """This process's environment without the settings of any installation, and with ``data_dir`` as a fresh one's."""
    foreign = ("LORAPLEX_", "DATABASE_URL", "REDIS_URL", "PORT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"LORAPLEX_DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "gateway.settings"} | more


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Process:
    """A child in a process group of its own, its output in a file; ``with`` stops it and what it started.

    :param env: all of its environment; ``None``: this process's.
    """

    def __init__(self, argv: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.argv = argv
        self.log = log
        self.env = env

    def start(self) -> None:
        with self.log.open("wb") as out:
            self.child = subprocess.Popen(
                self.argv, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=self.env, start_new_session=True
            )

    def __enter__(self) -> Process:
        self.start()
        return self

    def wait_for(self, text: str, seconds: float = 180) -> str:
        """The first line of its output that contains ``text``; ``SystemExit`` with the log's end when none comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.log.read_text(errors="replace").splitlines():
                if text in line:
                    return line
            if self.child.poll() is not None:
                break
            time.sleep(0.1)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        state = f"exited with {self.child.returncode}" if self.child.poll() is not None else f"not ready in {seconds} s"
        raise SystemExit(f"{' '.join(self.argv[:4])} …: {state}\n{tail}")

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGTERM)
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()
