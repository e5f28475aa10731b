"""The other end of a rehearsal: one process at a time, replaced when a grammar has ended it."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path

from inference.constraints.rehearsal import frame
from inference.constraints.vocabulary import Vocabulary

WALL_SECONDS = 20.0
"""Most time for one grammar, start of the process included; its CPU time ends long before."""
TOO_COMPLEX = "the language is too complex to compile"


class Checker:
    """Not thread-safe: each thread has its own. The process starts with the first grammar."""

    def __init__(self, model_dir: Path, vocabulary: Vocabulary) -> None:
        self._command = [sys.executable, "-m", "inference.constraints.rehearsal", "--model", str(model_dir)]
        self._command += ["--vocab-size", str(vocabulary.size)]
        for token in sorted(vocabulary.eos_token_ids):
            self._command += ["--end-token", str(token)]
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str) -> str | None:
        """What is wrong with a grammar; ``None``: it may be compiled anywhere."""
        process = self._process or self._start()
        try:
            self._write(process, frame({"grammar": grammar}))
            answer = json.loads(self._read(process, time.monotonic() + WALL_SECONDS))
        except (OSError, EOFError, TimeoutError, ValueError):
            self.close()  # it has reached a limit, or will not answer
            return TOO_COMPLEX
        error: str | None = answer["error"]
        return error

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        return self._process

    def _write(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        assert process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[process.stdin.write(view) or 0 :]

    def _read(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        length = int.from_bytes(self._exactly(process, 4, deadline), "little")
        return self._exactly(process, length, deadline)

    def _exactly(self, process: subprocess.Popen[bytes], count: int, deadline: float) -> bytes:
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        data = b""
        while len(data) < count:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = process.stdout.read(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data
