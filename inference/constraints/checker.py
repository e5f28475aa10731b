"""The other end of a rehearsal: one process at a time, replaced when a grammar has ended it."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from inference.constraints.rehearsal import UNFIT_STATUS, frame
from inference.constraints.vocabulary import Vocabulary
from inference.errors import Overloaded

START_SECONDS = 60.0
"""Most time until a process has read the vocabulary."""
WALL_SECONDS = 20.0
"""Most time for one grammar in a process that is up; its CPU time ends long before."""
ENDING_SECONDS = 5.0
"""Most time between the end of a process's output and its own."""
ATTEMPTS = 2
RETRY_SECONDS = 5.0
TOO_COMPLEX = "the language is too complex to compile"
UNFIT = frozenset({UNFIT_STATUS, -signal.SIGXCPU, -signal.SIGSEGV, -signal.SIGABRT})
"""How a process ends that a grammar has brought to a limit of CPU time, stack or memory.

Any other end (the memory killer's SIGKILL, an operator's SIGTERM) says nothing about the grammar.
"""


class Checker:
    """Not thread-safe: each thread has its own. The process starts with the first grammar."""

    def __init__(self, model_dir: Path, vocabulary: Vocabulary) -> None:
        self._command = [sys.executable, "-m", "inference.constraints.rehearsal", "--model", str(model_dir)]
        self._command += ["--vocab-size", str(vocabulary.size)]
        for token in sorted(vocabulary.eos_token_ids):
            self._command += ["--end-token", str(token)]
        self._process: subprocess.Popen[bytes] | None = None
        self._started = False  # it has said that it is up

    def check(self, grammar: str) -> str | None:
        """What is wrong with a grammar; ``None``: it may be compiled anywhere.

        Raises :class:`Overloaded` if two processes ended, or did not start, for reasons that are not the grammar's.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended between two grammars
        for _ in range(ATTEMPTS):
            try:
                return self._ask(self._process or self._start(), grammar)
            except (OSError, EOFError, ValueError):
                if self._was_unfit():
                    return TOO_COMPLEX
        raise Overloaded("The worker cannot check the constraint at the moment", RETRY_SECONDS)

    def _ask(self, process: subprocess.Popen[bytes], grammar: str) -> str | None:
        self._write(process, frame({"grammar": grammar}))
        try:
            answer = self._read(process, time.monotonic() + WALL_SECONDS)
        except TimeoutError:  # it was up, and has had its time
            self.close()
            return TOO_COMPLEX
        error: str | None = json.loads(answer)["error"]
        return error

    def _was_unfit(self) -> bool:
        """Whether the process, which gave no answer, was ended by the grammar; it is gone then in any case."""
        process, started = self._process, self._started
        if process is None:
            return False
        try:
            status = process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.close()
        return started and status in UNFIT

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        """Returns when it takes grammars: what its start needs is not the grammar's time."""
        self._started = False
        process = self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._read(process, time.monotonic() + START_SECONDS)
        self._started = True
        return process

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
