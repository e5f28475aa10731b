"""The core as a process: one Unix socket to the front, two threads beside the loop.

The loop never touches the socket: one thread reads frames into its inbox, another writes what it has said. When the
front goes away, the reader sees the end of the stream and the core leaves, so that no core outlives its front.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path

from inference.core.limits import Limits
from inference.core.loop import Loop, Stop
from inference.core.messages import MAX_FRAME_BYTES, Message, decode, encode
from inference.core.shares import ShareRules
from inference.core.step import Runner
from inference.errors import InferenceError

log = logging.getLogger(__name__)
PR_SET_PDEATHSIG = 1


def serve(path: Path, runner: Runner, limits: Limits, *, base: str, store: Path) -> None:
    """Connect to the front at ``path`` and compute until it closes the connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    loop = Loop(runner, limits, base=base, store=store, send=outbox.put)
    threading.Thread(target=_read, args=(connection, loop), name="from-front", daemon=True).start()
    writer = threading.Thread(target=_write, args=(connection, outbox), name="to-front", daemon=True)
    writer.start()
    try:
        loop.run_forever()
    finally:
        outbox.put(None)
        writer.join(timeout=1.0)
        connection.close()


def _read(connection: socket.socket, loop: Loop) -> None:
    """Frames → inbox, until the front is gone."""
    try:
        with connection.makefile("rb") as stream:
            while header := stream.read(4):
                length = int.from_bytes(header, "little")
                if len(header) < 4 or length > MAX_FRAME_BYTES:
                    raise ValueError("a broken frame from the front")
                loop.inbox.put(decode(stream.read(length)))
    except (OSError, ValueError) as error:
        log.error("the connection to the front broke: %s", error)
    loop.inbox.put(Stop())


def _write(connection: socket.socket, outbox: queue.SimpleQueue[Message | None]) -> None:
    """Outbox → frames; whatever has gathered goes in one call."""
    ended = False
    try:
        while not ended:
            messages = [outbox.get()]
            while not outbox.empty():
                messages.append(outbox.get())
            ended = messages[-1] is None  # nothing is said after the end
            connection.sendall(b"".join(encode(message) for message in messages if message is not None))
    except OSError:
        return  # the reader sees the same and stops the loop


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; the end of the socket does the same elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare() -> None:
    """What a core process does first: signals are the front's business, and it never outlives the front."""
    die_with_parent()
    # Ctrl-C reaches the whole group; the front drains, then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s core %(levelname)s %(message)s", stream=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.core.process")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapter-store", type=Path, required=True)
    parser.add_argument("--num-blocks", type=int, required=True)
    parser.add_argument("--num-slots", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-running", type=int, required=True)
    parser.add_argument("--token-budget", type=int, required=True)
    parser.add_argument("--max-waiting", type=int, required=True)
    parser.add_argument("--max-waiting-per-tenant", type=int, required=True)
    parser.add_argument("--reserved-blocks", type=int, required=True)
    parser.add_argument("--cap-blocks", type=int, required=True)
    parser.add_argument("--idle-seconds", type=float, required=True)
    options = parser.parse_args()
    prepare()
    try:
        from inference.model_store import fingerprint_of
        from inference.runner import TorchRunner

        runner = TorchRunner.load(
            options.model,
            num_blocks=options.num_blocks,
            num_slots=options.num_slots,
            max_model_len=options.max_model_len,
            threads=options.threads,
            dtype=options.dtype,
        )
        limits = Limits(
            max_model_len=options.max_model_len,
            max_running=options.max_running,
            token_budget=options.token_budget,
            max_waiting=options.max_waiting,
            max_waiting_per_tenant=options.max_waiting_per_tenant,
            shares=ShareRules(options.reserved_blocks, options.cap_blocks, options.idle_seconds),
        )
        serve(options.socket, runner, limits, base=fingerprint_of(options.model), store=options.adapter_store)
    except InferenceError as error:
        log.error("%s", error)
        return 1
    except MemoryError:
        log.error("not enough memory for the model and %s KV blocks", options.num_blocks)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of the device's libraries must not hold the process
