"""How a site holds adapters: how many, how large, in which type."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Storage:
    """With ``slots`` and ``max_rank`` nothing that kernels read moves as adapters come and go, as graphs need it.

    :param slots: how many there are, numbered from 0; ``None``: as many as are asked for.
    :param max_rank: the largest of any slice; ``None``: any.
    :param dtype: of the matrices that are held: ``None``, that of the site, or :data:`FP8`, see
        :class:`sgmv.operands.Operands`.
    """

    slots: int | None = None
    max_rank: int | None = None
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name, value in (("slots", self.slots), ("max_rank", self.max_rank)):
            if value is not None and value < 1:
                raise SgmvArgumentError(f"storage.{name}", f"{value} has to be at least 1")
        if self.dtype not in (None, FP8):
            raise SgmvArgumentError("storage.dtype", f"{self.dtype}; there is {FP8}, or None for the site's own")

    @property
    def fixed(self) -> bool:
        return self.slots is not None and self.max_rank is not None

    def check(self, slot: int, ranks: tuple[int, ...] = ()) -> None:
        """Raises :class:`SgmvArgumentError` unless there is room. :param ranks: of each slice."""
        if slot < 0 or (self.slots is not None and slot >= self.slots):
            there = "they begin at 0" if self.slots is None else f"there are {self.slots}, from 0 on"
            raise SgmvArgumentError("slot", f"{slot}; {there}")
        for index, rank in enumerate(ranks):
            if self.max_rank is not None and rank > self.max_rank:
                raise SgmvArgumentError(f"weights.a[{index}]", f"rank {rank}, there is room for {self.max_rank}")


def actual(device: torch.device | str) -> torch.device:
    """With the number that its tensors have: ``cuda`` is ``cuda:0`` or another one."""
    return torch.empty(0, device=device).device


def sent(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A contiguous copy. From the host to a GPU through pinned memory: the host does not wait for the device."""
    if device.type != "cpu" and tensor.device.type == "cpu":
        staged = torch.empty(tensor.shape, device="cpu", dtype=dtype, pin_memory=device.type == "cuda")
        return staged.copy_(tensor).to(device, non_blocking=True)
    return torch.empty(tensor.shape, device=device, dtype=dtype).copy_(tensor)
