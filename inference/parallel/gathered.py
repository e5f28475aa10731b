"""The head over ranks: each has a part of the vocabulary, and rank 0 gets the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.adapted import Adapted
from inference.models.lora import AdapterStep
from inference.parallel.peers import Peers


@dataclass(frozen=True, slots=True)
class Gathered:
    """:param part: this rank's, see :meth:`~inference.parallel.shard.Shard.spread`. :param width: the vocabulary's."""

    part: Adapted
    peers: Peers
    width: int

    def __call__(self, x: Tensor, step: AdapterStep | None) -> Tensor:
        """``[n, hidden] → [n, vocabulary]`` on rank 0; this rank's part on the others."""
        y = self.part(x, step)
        parts = self.peers.gather(y)
        return torch.cat(parts, dim=1)[:, : self.width].contiguous() if parts else y
