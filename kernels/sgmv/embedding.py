"""LoRA on the embedding: ``y[t] += scaling[s] · B[s] A[s][:, token of t]``, with ``s`` the slot of row ``t``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.plan import Plan
from sgmv.storage import Storage, actual


@dataclass(frozen=True, slots=True)
class EmbeddingWeights:
    """One adapter's, laid out as they are read.

    :param a: Aᵀ, ``[vocabulary, r]``, contiguous: a token's part is one row.
    :param b: scaling · Bᵀ, ``[r, hidden]``, contiguous.
    """

    a: Tensor
    b: Tensor

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.a, self.b))


class EmbeddingSite:
    """The adapters of the embedding, by slot, in torch's operations. Each adapter has its own pair of calls."""

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> None:
        self.vocabulary, self.hidden = vocabulary, hidden
        self.device, self.dtype = actual(device), dtype
        self._storage = storage or Storage()
        self._weights: dict[int, EmbeddingWeights] = {}

    @property
    def num_bytes(self) -> int:
        return sum(weights.num_bytes for weights in self._weights.values())

    def set(self, slot: int, weights: EmbeddingWeights) -> None:
        """Raises :class:`SgmvArgumentError` and changes nothing."""
        shape = (weights.a.shape[0], weights.b.shape[1])
        if shape != (self.vocabulary, self.hidden) or weights.a.shape[1] != weights.b.shape[0]:
            raise SgmvArgumentError("weights", f"{tuple(weights.a.shape)} and {tuple(weights.b.shape)} do not fit")
        self._storage.check(slot, (weights.b.shape[0],))
        self._weights[slot] = EmbeddingWeights(self._placed(weights.a), self._placed(weights.b))

    def clear(self, slot: int) -> None:
        self._weights.pop(slot, None)

    def apply(self, y: Tensor, tokens: Tensor, plan: Plan) -> None:
        """:param y: ``[T, hidden]``, the embedded tokens; only rows of slots with weights are written.
        :param tokens: ``[T]``.
        """
        for slot in plan.slots if self._weights else ():
            weights = self._weights.get(slot)
            if weights is None:
                continue
            index = torch.tensor(plan.rows(slot), device=y.device)
            shrunk = weights.a.index_select(0, tokens.index_select(0, index))
            y.index_add_(0, index, torch.mm(shrunk, weights.b))

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.dtype)
