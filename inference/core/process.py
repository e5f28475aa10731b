"""The core as a process: one Unix socket to the front, two threads beside the loop.

The loop never touches the socket: one thread reads frames into its inbox, another writes what it has said. When the
front goes away, the reader sees the end of the stream and the core leaves, so that no core outlives its front.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from inference.config import WorkerConfig
from inference.constraints.constraints import Constraints
from inference.constraints.vocabulary import Vocabulary
from inference.core.limits import Limits
from inference.core.loop import Loop, Stop
from inference.core.messages import MAX_FRAME_BYTES, Message, decode, encode
from inference.core.step import Runner
from inference.errors import ConfigError, InferenceError

log = logging.getLogger(__name__)
PR_SET_PDEATHSIG = 1


def serve(
    path: Path,
    runner: Runner,
    limits: Limits,
    *,
    base: str,
    store: Path,
    constraints: Callable[[Callable[[], None]], Constraints] | None = None,
) -> None:
    """Connect to the front at ``path`` and compute until it closes the connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(path))
    outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    loop = Loop(runner, limits, base=base, store=store, send=outbox.put, constraints=constraints)
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
    except Exception:
        # A core that computes but cannot say so would leave streams silent; the front must see it end.
        log.exception("a message could not be written")
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; the end of the socket does the same elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def prepare() -> None:
    """What a core process does before torch comes: signals are the front's business; it never outlives the front."""
    die_with_parent()
    # After each of its operations torch's other threads keep their cores busy for 3–7 ms by default, cores that this
    # process's own loops and the front want. 10,000 looks are about 0.03 ms, enough to meet an operation that follows.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Ctrl-C reaches the whole group; the front drains, then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s core %(levelname)s %(message)s", stream=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.core.process")
    parser.add_argument("--socket", type=Path, required=True, help="where the front listens")
    parser.add_argument("--config", type=WorkerConfig.from_json, required=True, help="the worker's settings as JSON")
    options = parser.parse_args()
    config: WorkerConfig = options.config
    prepare()
    try:
        runner, base = load(config)
        serve(
            options.socket,
            runner,
            config.limits(),
            base=base,
            store=config.adapter_store,
            constraints=_constraints(config.model, runner),
        )
    except InferenceError as error:
        log.error("%s", error)
        return 1
    except MemoryError:
        log.error("not enough memory for the model and %s KV blocks", config.kv_blocks)
        return 1
    return 0


def load(config: WorkerConfig) -> tuple[Runner, str]:
    """The model on its device, and the base model's part of every cache key."""
    from inference.model_store import fingerprint_of
    from inference.runner import TorchRunner

    assert config.max_model_len is not None, "not resolved against the model's context"
    runner = TorchRunner.load(
        config.model,
        num_blocks=config.kv_blocks,
        num_slots=config.slots,
        max_model_len=config.max_model_len,
        threads=config.threads,
        dtype=config.dtype,
        device=config.device,
        weights=config.weights,
    )
    return runner, fingerprint_of(config.model)


def _constraints(model: Path, runner: Runner) -> Callable[[Callable[[], None]], Constraints] | None:
    """What the loop makes its constraints with; ``None`` (and a line in the log) for a model that has none."""
    try:
        vocabulary = Vocabulary.load(model, vocab_size=runner.vocab_size, eos_token_ids=runner.eos_token_ids)
    except ConfigError as error:
        log.warning("answers cannot be constrained: %s", error)
        return None
    return lambda wake: Constraints(vocabulary, model, wake)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of the device's libraries must not hold the process
