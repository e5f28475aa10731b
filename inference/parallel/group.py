"""This process's end of ``torch.distributed``: the ranks sum and gather tensors, and do nothing else through it."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from inference.errors import ConfigError
from inference.parallel.shard import Shard

MEETING_SECONDS = 60.0
"""How long ranks wait for each other's CUDA devices at least: machines of many take that for the first context."""


class Group:
    """Build with :meth:`join`; one in a process.

    Ranks are processes of one machine and one user. They find each other through a file in a folder that nobody else
    can enter, and their connections listen on the loopback interface alone. Nothing is pickled: only numbers travel.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    @classmethod
    def join(cls, folder: Path, shard: Shard, *, device: torch.device, seconds: float) -> Group:
        """Meet the other ranks: gloo on the CPU, NCCL on CUDA.

        :param folder: of mode 0700, the same for all ranks.
        :param seconds: how long a rank waits for the others, in each sum and (on CUDA :data:`MEETING_SECONDS` at least)
            here: then it raises, and the core ends. Seen with gloo; NCCL, which meets through the file's store alone,
            has not run.
        :raises ConfigError: they do not come, or this torch lacks the backend.
        """
        loopback = "lo" if sys.platform == "linux" else "lo0"
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)
        wait = timedelta(seconds=seconds)
        meeting = timedelta(seconds=max(seconds, MEETING_SECONDS)) if cuda else wait
        try:
            store = dist.FileStore(str(folder / "ranks"), shard.size)  # type: ignore[attr-defined]
            store.set_timeout(meeting)  # its own is 300 s, whatever the group's is
            dist.init_process_group(
                "nccl" if cuda else "gloo",
                store=store,
                rank=shard.rank,
                world_size=shard.size,
                timeout=wait,
                device_id=device if cuda else None,  # NCCL connects now, not at the first sum
            )
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"the ranks did not meet: {error}") from error
        return cls(shard)

    def sum(self, tensor: Tensor) -> None:
        """Of :class:`inference.parallel.peers.Peers`. Raises ``RuntimeError`` if a rank is gone or does not come.

        In the ranks' order for every number, so that a row's bits do not depend on which rows share the step: a ring's
        all-reduce begins each piece of the tensor at another rank. The sum of two has one order; from three on each
        rank adds up for itself, which sends more than a ring would, in one go instead of two.
        """
        if self.shard.size == 2:
            dist.all_reduce(tensor)
            return
        parts = list(tensor.new_empty(self.shard.size, *tensor.shape))
        dist.all_gather(parts, tensor)
        tensor.copy_(parts[0])
        for part in parts[1:]:
            tensor += part

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Of :class:`inference.parallel.peers.Peers`. Raises as :meth:`sum` does."""
        if self.shard.rank:
            dist.gather(tensor, dst=0)
            return []
        parts = list(tensor.new_empty(self.shard.size, *tensor.shape))
        dist.gather(tensor, parts, dst=0)
        return parts
