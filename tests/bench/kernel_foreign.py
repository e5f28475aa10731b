"""Other projects' kernels as columns, where their packages can be imported.

Written against the public signatures of vLLM 0.32 (``vllm.lora.ops.triton_ops``) and SGLang 0.5.23
(``sglang.kernels.ops.lora.dense``). Neither has been run by us on a GPU: a column that is wrong there, or that a later
version's signature breaks, is reported and not timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from kernel_adapters import SCALING, Adapters
from kernel_columns import Absent, Column
from torch import Tensor

SEGMENT = 16
"""Rows of one of SGLang's segments: what its server takes unless told otherwise."""


class Vllm(Column):
    """``lora_shrink`` into a zeroed float32 buffer, ``lora_expand`` from it; grids for the active adapters alone."""

    name = "vllm"

    def __init__(self, adapters: Adapters) -> None:
        super().__init__(adapters)
        try:
            from vllm.lora.ops.triton_ops import LoRAKernelMeta, lora_expand, lora_shrink
        except (ImportError, OSError) as error:
            raise Absent(str(error)) from error
        self._shrink, self._expand = lora_shrink, lora_expand
        self._make = LoRAKernelMeta.make
        self._meta = None
        self._caches = vllm_caches()
        self._a = [adapters.a[:, ranks].contiguous() for ranks in adapters.ranks]
        self._b = [adapters.b[:, columns].contiguous() for columns in adapters.columns]

    def begin(self, slots: Sequence[int]) -> None:
        if self._meta is None:  # buffers that its server makes once
            self._meta = self._make(len(self.adapters), len(slots), device=self.device)
        self._meta.prepare_tensors(torch.tensor(slots).to(self.device))

    def apply(self, y: Tensor, x: Tensor) -> None:
        buffer = torch.empty(len(self._a), len(x), self.adapters.rank, dtype=torch.float32, device=self.device)
        arguments = self._meta.meta_args(len(x), True)
        self._shrink(x, self._a, buffer, *arguments, SCALING)
        self._expand(buffer, self._b, y, *arguments, add_inputs=True)

    def end(self) -> None:
        for cache in self._caches:
            cache.clear()


def vllm_caches() -> list[dict[Any, Any]]:
    """What it remembers of weights by their addresses, which the next case's lie at: its server never moves any."""
    from vllm.lora.ops.triton_ops import utils

    return [getattr(utils, name) for name in ("_LORA_A_PTR_DICT", "_LORA_B_PTR_DICT") if hasattr(utils, name)]


class Sglang(Column):
    """Chunked SGMV, its default. The metadata are the least that its kernels read: its server prepares more."""

    name = "sglang"

    def __init__(self, adapters: Adapters) -> None:
        super().__init__(adapters)
        try:
            from sglang.kernels.ops.lora.dense.chunked_sgmv_expand import chunked_sgmv_lora_expand_forward
            from sglang.kernels.ops.lora.dense.chunked_sgmv_shrink import chunked_sgmv_lora_shrink_forward
            from sglang.srt.lora.utils import LoRABatchInfo
        except (ImportError, OSError) as error:
            raise Absent(str(error)) from error
        self._shrink, self._expand, self._info = (
            chunked_sgmv_lora_shrink_forward,
            chunked_sgmv_lora_expand_forward,
            LoRABatchInfo,
        )
        ends = [0, *(columns.stop for columns in adapters.columns)]
        self._offsets_here = torch.tensor(ends, dtype=torch.int32)
        self._offsets = self._offsets_here.to(self.device)

    def begin(self, slots: Sequence[int]) -> None:
        rows = torch.tensor(slots)
        order = torch.argsort(rows, stable=True)
        kinds, counts = torch.unique_consecutive(rows[order], return_counts=True)
        owners: list[int] = []
        ends = [0]
        for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            for start in range(0, count, SEGMENT):
                owners.append(kind)
                ends.append(ends[-1] + min(SEGMENT, count - start))
        count = len(self.adapters)
        self._batch = self._info(
            use_cuda_graph=False,
            bs=len(slots),
            num_segments=len(owners),
            max_len=SEGMENT,
            seg_lens=None,
            seg_indptr=self._placed(ends),
            weight_indices=self._placed(owners),
            lora_ranks=self._placed([self.adapters.rank] * count),
            scalings=torch.full((count,), SCALING, dtype=torch.float32).to(self.device),
            permutation=order.to(torch.int32).to(self.device),
        )

    def apply(self, y: Tensor, x: Tensor) -> None:
        own = self.adapters
        shrunk = self._shrink(x=x, weights=own.a, batch_info=self._batch, num_slices=len(own.site.slices))
        self._expand(
            x=shrunk,
            weights=own.b,
            batch_info=self._batch,
            slice_offsets=self._offsets,
            slice_offsets_cpu=self._offsets_here,
            max_slice_size=max(own.site.slices),
            base_output=y,
        )

    def _placed(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32).to(self.device)


FOREIGN: tuple[type[Column], ...] = (Vllm, Sglang)
