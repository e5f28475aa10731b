"""Rank 0's hold on the other ranks: their processes, and one ordered connection to each.

Everything that the ranks do together is told in this order, so that all do the same. The connections are socket pairs
that the processes are born with: there is nothing to connect to, an idle rank waits without a deadline, and the death
of either side is the end of a stream at once.
"""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from inference.config import BLOCK_SIZE, WorkerConfig
from inference.core.step import Row
from inference.errors import ConfigError
from inference.parallel.link import Link
from inference.parallel.messages import Compute, Held, Loaded, Message, ReadAdapter, Score, Started, encode
from inference.parallel.part import patience
from inference.parallel.rows import pack

log = logging.getLogger(__name__)


class Ranks:
    """Starts ranks 1 to N − 1. All but :meth:`read` and :meth:`forget` is the loop's thread's alone.

    :param folder: where all ranks meet, see :class:`~inference.parallel.group.Group`.
    :param lost: called with the reason when a rank goes while it is wanted, in a thread. It has to end the core: what
        is left cannot compute.
    """

    def __init__(self, config: WorkerConfig, folder: Path, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self._links: list[Link] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()  # while they start
        self._reading: dict[tuple[int, int], Future[Held]] = {}  # (rank, number)
        self._forgotten: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._closing = False
        for rank in range(1, config.tensor_parallel):
            self._start(rank, folder, config)

    def _start(self, rank: int, folder: Path, config: WorkerConfig) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "inference.parallel.rank", "--rank", str(rank), "--folder", str(folder)]
        command += ["--socket", str(theirs.fileno()), "--config", config.to_json()]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)  # noqa: S603
        self._processes.append(process)
        self._links.append(Link(ours, patience(config)))
        threading.Thread(target=self._listen, args=(rank,), name=f"rank-{rank}", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def await_started(self) -> None:
        """Until all are about to meet. Raises :class:`ConfigError`."""
        self._all_say(Started)

    def await_loaded(self) -> None:
        """Raises :class:`ConfigError` if one cannot load its part; its log says why."""
        self._all_say(Loaded)

    def tell(self, message: Message) -> None:
        """The same to every rank. Raises ``RuntimeError`` as the sums do when one is gone or hangs."""
        frame = encode(message)
        try:
            for link in self._links:
                link.send(frame)
        except OSError as error:
            raise RuntimeError(f"a rank has gone: {error}") from error

    def compute(self, rows: Sequence[Row]) -> None:
        """Of :class:`inference.parallel.peers.Followers`, as :meth:`score`."""
        forget = []
        while not self._forgotten.empty():
            forget.append(self._forgotten.get())
        self.tell(Compute(pack(rows, BLOCK_SIZE), forget))

    def score(self, places: Sequence[int], slots: Sequence[int]) -> None:
        self.tell(Score(list(places), list(slots)))

    def forget(self, number: int) -> None:
        """With the next step. Called when rank 0's own part is collected, in any thread at any point: takes no lock."""
        self._forgotten.put(number)

    def read(self, message: ReadAdapter) -> list[Future[Held]]:
        """Every rank's answer. Thread-safe."""
        found = []
        for rank in range(1, len(self._links) + 1):
            found.append(self._reading.setdefault((rank, message.number), Future()))
        self.tell(message)
        return found

    def close(self) -> None:
        """End them and wait. They have nothing to put in order, and one of them may hang."""
        self._closing = True
        for link in self._links:
            link.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def _all_say(self, kind: type[Message]) -> None:
        for _ in self._links:
            rank, message = self._said.get()
            if not isinstance(message, kind):
                raise ConfigError(f"rank {rank} did not start; its log says why")

    def _listen(self, rank: int) -> None:
        """In a thread of its own, to the end of the stream."""
        try:
            for message in self._links[rank - 1].messages():
                if isinstance(message, Held):
                    self._reading.pop((rank, message.number)).set_result(message)
                else:
                    self._said.put((rank, message))
        except (OSError, ValueError, KeyError) as error:
            log.error("the connection to rank %s broke: %r", rank, error)
        self._said.put((rank, None))
        for key in list(self._reading):
            if key[0] == rank:
                self._reading.pop(key).set_exception(RuntimeError(f"rank {rank} has gone"))
        if not self._closing:
            self._lost(f"rank {rank} has gone")
