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
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from inference import heap
from inference.config import CPU_BLOCKS, WorkerConfig
from inference.constraints.constraints import Constraints
from inference.constraints.vocabulary import Vocabulary
from inference.core.limits import Limits
from inference.core.loop import Loop, Stop
from inference.core.messages import Message, encode, read
from inference.core.step import Runner
from inference.errors import ConfigError, InferenceError
from inference.model_config import ModelConfig

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
    heap.settle()
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
            while (message := read(stream)) is not None:
                loop.inbox.put(message)
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


def prepare(name: str = "core") -> None:
    """What a process that computes does before torch comes: signals are the front's business; it never outlives it.

    :param name: what its log is known by.
    """
    die_with_parent()
    # After each of its operations torch's other threads keep their cores busy for 3–7 ms by default, cores that this
    # process's own loops and the front want. 10,000 looks are about 0.03 ms, enough to meet an operation that follows.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Ctrl-C reaches the whole group; the front drains, then closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", stream=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.core.process")
    parser.add_argument("--socket", type=Path, required=True, help="where the front listens")
    parser.add_argument("--config", type=WorkerConfig.from_json, required=True, help="the worker's settings as JSON")
    options = parser.parse_args()
    config: WorkerConfig = options.config
    prepare()
    try:
        with ExitStack() as ends:
            runner, base = load(config, ends)
            found = replace(config, kv_blocks=runner.num_blocks, max_model_len=runner.max_model_len)
            serve(
                options.socket,
                runner,
                found.limits(),
                base=base,
                store=config.adapter_store,
                constraints=_constraints(config.model, runner),
            )
    except InferenceError as error:
        log.error("%s", error)
        return 1
    except MemoryError:
        log.error("not enough memory for the model and its KV cache; --kv-blocks asks for less")
        return 1
    return 0


def load(config: WorkerConfig, ends: ExitStack) -> tuple[Runner, str]:
    """The model on its device or devices, and the base model's part of every cache key.

    :param ends: learns what has to be ended with the core.
    """
    from inference.device import choose
    from inference.model_store import fingerprint_of

    alone = config.tensor_parallel == 1
    if config.kv_blocks is None and not (alone and choose(config.device, config.dtype)[0].type == "cuda"):
        context = ModelConfig.load(config.model).max_position
        config = replace(config, kv_blocks=CPU_BLOCKS).resolved(context)
    if not alone:
        from inference.parallel.lead import LeadRunner

        lead = LeadRunner.start(config, _end)
        ends.callback(lead.close)
        return lead, fingerprint_of(config.model)
    from inference.runner import TorchRunner

    runner = TorchRunner.load(
        config.model,
        num_blocks=config.kv_blocks,
        num_slots=config.slots,
        max_model_len=config.max_model_len,
        threads=config.threads,
        dtype=config.dtype,
        device=config.device,
        weights=config.weights,
        adapters=config.adapter_weights,
        most_rows=config.max_running,
        most_tokens=config.token_budget,
        eager=config.eager,
    )
    return runner, fingerprint_of(config.model)


def _end(reason: str) -> None:
    """At once, whatever the loop waits for. The front sees its connection end; the other ranks end with this one."""
    log.error("the core ends: %s", reason)
    sys.stderr.flush()
    os._exit(1)


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
