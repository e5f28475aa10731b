"""A rank other than 0, as a process: it does what rank 0 tells it, in that order, and ends with it."""

from __future__ import annotations

import argparse
import logging
import os
import queue
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from inference import heap
from inference.config import WorkerConfig
from inference.core.process import prepare
from inference.errors import AdapterInvalid, InferenceError
from inference.parallel.link import Link
from inference.parallel.messages import (
    ClearSlot,
    Compute,
    Held,
    Loaded,
    LoadSlot,
    Message,
    ReadAdapter,
    Score,
    Started,
    encode,
)
from inference.parallel.rows import unpack
from inference.parallel.shard import Shard

if TYPE_CHECKING:  # torch comes after prepare()
    from torch import Tensor

    from inference.adapters.host import HostAdapter
    from inference.runner import TorchRunner

log = logging.getLogger(__name__)


class Rank:
    """:param runner: of this rank's part."""

    def __init__(self, runner: TorchRunner, link: Link) -> None:
        self._runner, self._link = runner, link
        self._hidden: Tensor | None = None  # of the tokens computed last
        self._adapters: dict[int, HostAdapter] = {}
        self._reader = ThreadPoolExecutor(max_workers=2, thread_name_prefix="adapter-reader")

    def do(self, message: Message) -> None:
        """In the one thread that touches the device."""
        match message:
            case Compute(rows, forget):
                for number in forget:
                    self._adapters.pop(number, None)
                self._hidden = self._runner.compute(unpack(rows))
            case Score(places, slots):
                assert self._hidden is not None, "logits of nothing"
                self._runner.logits(self._hidden, places, slots)
            case LoadSlot(slot, number):
                self._runner.load_adapter(slot, self._adapters[number])
            case ClearSlot(slot):
                self._runner.clear_slot(slot)
            case ReadAdapter():
                self._reader.submit(self._read, message)
            case _:
                raise ValueError(f"rank 0 said {type(message).__name__}")

    def _read(self, message: ReadAdapter) -> None:
        self._link.send(encode(self._held(message)))

    def _held(self, message: ReadAdapter) -> Held:
        from inference.parallel.part import content_of

        directory = Path(message.path)
        try:
            adapter = self._runner.read_adapter(directory)
            content = content_of(directory)
        except AdapterInvalid as error:
            return Held(message.number, error=str(error), field=error.field)
        except Exception as error:
            log.exception("reading the adapter at %s failed", directory)
            return Held(message.number, error=type(error).__name__, invalid=False)
        self._adapters[message.number] = adapter
        return Held(message.number, adapter.held_bytes, content)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.parallel.rank")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the ranks meet")
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the connection to rank 0")
    parser.add_argument("--config", type=WorkerConfig.from_json, required=True, help="the worker's settings as JSON")
    options = parser.parse_args()
    prepare(f"rank {options.rank}")
    config: WorkerConfig = options.config
    link = Link(socket.socket(fileno=options.socket))
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(link, inbox), name="from-rank-0", daemon=True).start()
    try:
        return _serve(config, Shard(options.rank, config.tensor_parallel), options.folder, link, inbox)
    except (InferenceError, RuntimeError, OSError) as error:
        log.error("%s", error)
    except MemoryError:
        log.error("not enough memory for this rank's part of the model and of the KV cache; --kv-blocks asks for less")
    except Exception:
        log.exception("this rank failed")
    return 1


def _serve(config: WorkerConfig, shard: Shard, folder: Path, link: Link, inbox: queue.SimpleQueue[Message]) -> int:
    import torch

    from inference.parallel.part import load_part

    link.send(encode(Started()))
    rank = Rank(load_part(config, shard, folder), link)
    heap.settle()
    link.send(encode(Loaded()))
    with torch.inference_mode():
        while True:
            rank.do(inbox.get())


def _listen(link: Link, inbox: queue.SimpleQueue[Message]) -> None:
    """Rank 0's end is this rank's, whatever it is doing; it may be waiting for a sum that will never come."""
    try:
        for message in link.messages():
            inbox.put(message)
    except (OSError, ValueError) as error:
        log.error("the connection to rank 0 broke: %s", error)
    os._exit(0)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
