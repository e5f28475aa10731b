"""The embedding's adapters for :func:`sgmv.triton_pointwise.embed`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sgmv.embedding import EmbeddingSite, EmbeddingWeights
from sgmv.errors import SgmvArgumentError
from sgmv.plan import TILE_ROWS, Plan
from sgmv.slot_table import SlotTable
from sgmv.storage import Storage, sent
from sgmv.triton_pointwise import EMBEDDING_ENTRY, embed
from sgmv.triton_site import INTERPRETED, WEIGHTS, launches

EMBED_BN = 128
EMBED_BR = 16
"""Ranks of a turn, as in expand."""


class TritonEmbeddingSite(EmbeddingSite):
    """See :class:`sgmv.embedding.EmbeddingSite`. Tokens, tiles and addresses are read on the device."""

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        storage: Storage | None = None,
    ) -> None:
        super().__init__(vocabulary, hidden, device=device, dtype=dtype, storage=storage)
        self._table = SlotTable(EMBEDDING_ENTRY, self._storage, self.device)

    def set(self, slot: int, weights: EmbeddingWeights) -> None:
        super().set(slot, weights)
        own = self._weights[slot]
        self._table.put(slot, [own.a.data_ptr(), own.b.data_ptr(), own.b.shape[0], 0])

    def clear(self, slot: int) -> None:
        self._table.drop(slot)
        super().clear(slot)

    def apply(self, y: Tensor, tokens: Tensor, plan: Plan) -> None:
        if y.shape != (plan.num_rows, self.hidden) or y.dtype is not self.dtype or y.device != self.device:
            found, expected = f"{tuple(y.shape)}, {y.dtype} on {y.device}", (plan.num_rows, self.hidden)
            raise SgmvArgumentError("y", f"{found}; expected {expected}, {self.dtype} on {self.device}")
        if y.stride(1) != 1 and y.numel():
            raise SgmvArgumentError("y", "its last dimension has to be contiguous")
        if tokens.shape != (plan.num_rows,) or tokens.dtype not in (torch.int32, torch.int64):
            message = f"{tuple(tokens.shape)}, {tokens.dtype}; expected ({plan.num_rows},), int32 or int64"
            raise SgmvArgumentError("tokens", message)
        if tokens.device != self.device or (tokens.stride(0) != 1 and tokens.numel()):
            raise SgmvArgumentError("tokens", f"has to be contiguous, on {self.device}")
        if not launches(plan, self._storage, bool(self._weights)):
            return
        tiles, rows, _ = plan.on(self.device)
        block = min(EMBED_BN, max(16, triton.next_power_of_2(self.hidden)))
        embed[len(tiles), triton.cdiv(self.hidden, block)](
            *(y, y.stride(0), tokens, tiles, rows, self._table.numbers, len(self._table), self.vocabulary),
            HIDDEN=self.hidden,
            WEIGHT=WEIGHTS[self.dtype],
            BM=TILE_ROWS,
            BN=block,
            BR=EMBED_BR,
            WIDE=INTERPRETED,
        )

    def _placed(self, tensor: Tensor) -> Tensor:
        return sent(tensor, self.device, self.dtype)
