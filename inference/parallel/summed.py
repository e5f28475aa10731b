"""The second of two parallel linears: its input is spread over the ranks, its output is their sum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from inference.models.adapted import Adapted
from inference.models.lora import AdapterStep
from inference.parallel.peers import Peers


@dataclass(frozen=True, slots=True)
class Summed:
    """o and down: ``residual + Σ_ranks W_r x_r (+ bias)`` and the adapters' deltas, in one all-reduce.

    Everything that happens before the sum is linear in the output: ``B Σ (A_r x_r)`` is ``Σ B (A_r x_r)``, and DoRA's
    gain, which is measured on the whole row of weights when the adapter is read, scales each part as it would the sum.
    Residual and bias are rank 0's alone, so that they come in once; what all ranks go on with is then one tensor.

    :param part: this rank's columns; its linear has the bias on rank 0 and nowhere else.
    """

    part: Adapted
    peers: Peers

    def __call__(self, x: Tensor, step: AdapterStep | None) -> Tensor:
        y = self.part(x, step)
        self.peers.sum(y)
        return y

    def add(self, x: Tensor, residual: Tensor, step: AdapterStep | None) -> Tensor:
        y = self.part.add(x, residual, step) if self.peers.shard.rank == 0 else self.part(x, step)
        self.peers.sum(y)
        return y
