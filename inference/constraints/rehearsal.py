"""A process that compiles strangers' grammars first, so that no other has to be the one that breaks.

llguidance bounds most of what it does, not all: a chain of a thousand references overflows the stack, two dozen
intersected patterns take minutes and gigabytes. Here such a grammar costs this process, which the system ends at its
limits of CPU time, memory or stack. What compiles here is then followed for some random tokens: a language with a step
that is far too slow is refused as well.

Frames on stdin and stdout: four bytes of length (little-endian), then JSON; ``{"grammar"}`` and ``{"error"}``. An empty
object on stdout says that the vocabulary has been read and grammars may come.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np

from inference.constraints.vocabulary import Vocabulary

CPU_SECONDS = 2
MEMORY_BYTES = 512 * 1024 * 1024
STACK_BYTES = 32 * 1024 * 1024
NICE = 10
WALK_TOKENS = 64
UNFIT_STATUS = 3
"""Exit status where a grammar ended the process by an exception of Python's: of memory, mostly."""
STEP_SECONDS = 0.05
"""Most CPU time of one mask on the walk; an ordinary one takes 0.02 ms."""


def rehearse(vocabulary: Vocabulary, grammar: str) -> str | None:
    """Compile ``grammar`` and walk through its language; what is wrong with it."""
    matcher = vocabulary.matcher(grammar)
    draw = random.Random(0)  # noqa: S311 - a walk, not a secret
    for number in range(WALK_TOKENS):
        began = time.thread_time()
        bits = matcher.compute_bitmask()
        if matcher.is_error():
            return matcher.get_error() or "not accepted"
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
        token = int(allowed[draw.randrange(len(allowed))])
        if token in vocabulary.eos_token_ids and len(allowed) == 1:
            break
        matcher.consume_token(token)
        seconds = time.thread_time() - began
        if number and seconds > STEP_SECONDS:  # the first builds what the others use
            return f"the language is too complex: one step took {seconds * 1000:.0f} ms"
        if matcher.is_stopped() and not matcher.is_error():
            break
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m inference.constraints.rehearsal")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--end-token", type=int, action="append", required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    vocabulary = Vocabulary.load(options.model, vocab_size=options.vocab_size, eos_token_ids=options.end_token)
    _limit(resource.RLIMIT_AS, _address_space() + MEMORY_BYTES + STACK_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve, args=(vocabulary, sys.stdin.buffer, sys.stdout.buffer))
    worker.start()
    worker.join()


def _serve(vocabulary: Vocabulary, source: BinaryIO, sink: BinaryIO) -> None:
    sink.write(frame({}))
    sink.flush()
    while len(header := source.read(4)) == 4:
        request = json.loads(source.read(int.from_bytes(header, "little")))
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + CPU_SECONDS)
        try:
            error = rehearse(vocabulary, request["grammar"])
        except BaseException:  # a panic of llguidance's is no Exception
            os._exit(UNFIT_STATUS)
        sink.write(frame({"error": error}))
        sink.flush()


def frame(content: dict[str, str | None]) -> bytes:
    """As both ends write it."""
    body = json.dumps(content).encode()
    return len(body).to_bytes(4, "little") + body


def _limit(kind: int, most: int) -> None:
    """The soft limit: at its end the kernel ends the process."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int:
    """Bytes in use; what Linux says, else a guess that leaves room."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 32


if __name__ == "__main__":
    main()
