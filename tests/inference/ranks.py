"""Runners of several ranks, each rank but the first in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from inference.config import WorkerConfig
from inference.parallel.lead import LeadRunner


def config_of(model_dir: Path, size: int, **options: Any) -> WorkerConfig:
    """Of a worker on the CPU; nothing in it is read but the model."""
    settings: dict[str, Any] = {"slots": 0, "kv_blocks": 160, "max_model_len": 256, "threads": size, "device": "cpu"}
    settings["health_deadline"] = 60.0  # how long ranks wait for each other, on a machine that does much else
    places = {"model": model_dir, "adapter_store": model_dir, "grant_key": model_dir}
    return WorkerConfig(**places, **(settings | options), tensor_parallel=size)


@contextmanager
def led(
    model_dir: Path, size: int, *, lost: Callable[[str], None] = lambda reason: None, **options: Any
) -> Iterator[LeadRunner]:
    """This process is rank 0: without a rank it would end, were it a core."""
    threads = torch.get_num_threads()
    try:
        lead = LeadRunner.start(config_of(model_dir, size, **options), lost)
        try:
            pids = lead.ranks.pids
            assert len(pids) == size - 1
            assert all(map(_runs, pids))
            yield lead
        finally:
            lead.close()
    finally:
        if dist.is_initialized():  # also where a rank has met the others and then could not load its part
            dist.destroy_process_group()
        torch.set_num_threads(threads)
    assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
