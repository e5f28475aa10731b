"""One rank's part of a worker: its part of the model on its device, and what it reads of an adapter."""

from __future__ import annotations

from pathlib import Path

from inference.adapter_format import content_digest, is_digest
from inference.config import WorkerConfig
from inference.device import choose, rank_device
from inference.parallel.group import Group
from inference.parallel.peers import Followers
from inference.parallel.shard import Shard
from inference.runner import TorchRunner

LEAST_PATIENCE, MOST_PATIENCE = 5.0, 86_400.0
"""Seconds that a rank waits for another whatever ``--health-deadline`` is: they meet through a file."""


def patience(config: WorkerConfig) -> float:
    """Seconds that a rank waits for another."""
    return min(max(config.health_deadline, LEAST_PATIENCE), MOST_PATIENCE)


def load_part(config: WorkerConfig, shard: Shard, folder: Path, *, followers: Followers | None = None) -> TorchRunner:
    """Meet the other ranks at ``folder`` and load this rank's part. :param followers: see :meth:`TorchRunner.load`.

    A rank that waits for another longer than a step may take gives up: the core ends.
    """
    assert config.kv_blocks is not None, "each rank has the same number of blocks"
    assert config.max_model_len is not None, "not resolved against the model's context"
    device = rank_device(config.device, shard.rank, shard.size)
    place, _ = choose(device, config.dtype)
    peers = Group.join(folder, shard, device=place, seconds=patience(config))
    return TorchRunner.load(
        config.model,
        num_blocks=config.kv_blocks,
        num_slots=config.slots,
        max_model_len=config.max_model_len,
        threads=max(1, config.threads // shard.size),
        dtype=config.dtype,
        device=device,
        weights=config.weights,
        adapters=config.adapter_weights,
        peers=peers,
        followers=followers,
    )


def content_of(directory: Path) -> str:
    """Equal where two ranks have read the same: called after the tensors were.

    Empty for a directory that is named by its digest, which each rank has compared already.
    """
    return "" if is_digest(directory.name) else content_digest(directory)
