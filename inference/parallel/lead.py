"""Rank 0: schedules and samples as a core of one process does, and has the other ranks do their part of each step."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from inference.adapters.host import HostAdapter
from inference.config import WorkerConfig
from inference.core.step import Done, Row, Sampled
from inference.device import rank_device
from inference.device_errors import device_errors
from inference.errors import AdapterInvalid, InferenceError
from inference.model_config import ModelConfig
from inference.parallel.messages import ClearSlot, LoadSlot, ReadAdapter
from inference.parallel.part import content_of, load_part
from inference.parallel.ranks import Ranks
from inference.parallel.shard import Shard
from inference.runner import TorchRunner
from inference.warm_up import warm_steps


@dataclass(frozen=True, eq=False)
class ParallelAdapter:
    """One adapter in the host memory of every rank. :param own: rank 0's part. :param num_bytes: of all parts."""

    number: int
    own: HostAdapter
    num_bytes: int


class LeadRunner:
    """A :class:`~inference.core.step.Runner` on several ranks. Build one with :meth:`start`.

    :param own: rank 0's part. :param lost: told, as :class:`Ranks` tells it, when a step has failed.
    """

    ahead = False  # only rank 0 samples: what it found goes to the others with the next step's tokens

    def __init__(
        self, own: TorchRunner, ranks: Ranks, folder: TemporaryDirectory[str], lost: Callable[[str], None]
    ) -> None:
        self.block_size, self.num_blocks = own.block_size, own.num_blocks
        self.num_slots, self.max_model_len = own.num_slots, own.max_model_len
        self.vocab_size, self.eos_token_ids, self.kv_dtype = own.vocab_size, own.eos_token_ids, own.kv_dtype
        self.own, self.ranks = own, ranks
        self._folder, self._lost = folder, lost
        self._numbers = itertools.count()

    @classmethod
    def start(cls, config: WorkerConfig, lost: Callable[[str], None]) -> LeadRunner:
        """Start the other ranks, and load every rank's part.

        :param lost: see :class:`~inference.parallel.ranks.Ranks`.
        :raises ConfigError: the model cannot be divided so, or its part cannot be loaded here. Of a rank that does not
            start ``lost`` is told, as of every one that goes; where that returns, this is raised too.
        """
        shard = Shard(0, config.tensor_parallel)
        shard.config(ModelConfig.load(config.model))
        device = rank_device(config.device, shard.rank, shard.size)
        folder = TemporaryDirectory(prefix="loraplex-ranks-")  # of mode 0700

        def end(reason: str) -> None:
            try:
                folder.cleanup()
            finally:
                lost(reason)

        ranks = Ranks(config, Path(folder.name), end)
        try:
            ranks.await_started()
            own = load_part(config, shard, Path(folder.name), followers=ranks)
            ranks.await_loaded()
            lead = cls(own, ranks, folder, end)
            if device.startswith("cuda"):
                with device_errors(torch.device(device), config.kv_blocks):
                    warm_steps(lead, config.max_running, config.token_budget)
            else:
                folder.cleanup()  # gloo has connected everybody; NCCL's threads may look at the file again
        except BaseException:
            ranks.close()
            folder.cleanup()
            raise
        return lead

    def launch(self, rows: Sequence[Row]) -> Done:
        return Done(self.run(rows))

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        """A step, waited for."""
        try:
            return self.own.run(rows)
        except InferenceError as error:
            self._lost(str(error))  # the ranks are no longer at the same place, and no later step could tell
            raise

    def read_adapter(self, directory: Path) -> ParallelAdapter:
        """Every rank reads the same files at once and keeps its part: none travels between them."""
        number = next(self._numbers)
        answers = self.ranks.read(ReadAdapter(number, str(directory)))
        try:
            own = self.own.read_adapter(directory)
            content = content_of(directory)
        except BaseException:
            [answer.result() for answer in answers]  # else one would begin to hold it after it was told to forget
            self.ranks.forget(number)
            raise
        held = [answer.result() for answer in answers]
        adapter = ParallelAdapter(number, own, own.held_bytes + sum(each.num_bytes for each in held))
        weakref.finalize(adapter, self.ranks.forget, number).atexit = False
        for rank, each in enumerate(held, 1):
            if each.error is not None:
                error = f"rank {rank}: {each.error}"
                raise AdapterInvalid(error, each.field) if each.invalid else RuntimeError(error)
            if each.content != content:
                raise AdapterInvalid("the adapter's files changed while they were read")
        return adapter

    def adapter_bytes(self, adapter: object) -> int:
        return _checked(adapter).num_bytes

    def load_adapter(self, slot: int, adapter: object) -> None:
        found = _checked(adapter)
        self.own.load_adapter(slot, found.own)  # first: if it fails here, nobody has it
        self.ranks.tell(LoadSlot(slot, found.number))

    def clear_slot(self, slot: int) -> None:
        self.own.clear_slot(slot)
        self.ranks.tell(ClearSlot(slot))

    def close(self) -> None:
        """End the other ranks. Steps are over."""
        self.ranks.close()
        self._folder.cleanup()


def _checked(adapter: object) -> ParallelAdapter:
    if not isinstance(adapter, ParallelAdapter):
        raise TypeError(f"not what read_adapter returned: {type(adapter).__name__}")
    return adapter
