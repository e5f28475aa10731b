"""Chooses the implementation for a device. Backends register here; the engine asks only for a :class:`Site`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sgmv.cpu import CpuSite
from sgmv.errors import SgmvArgumentError
from sgmv.plan import Plan
from sgmv.torch_site import TorchSite
from sgmv.weights import SlotWeights


class Site(Protocol):
    """The adapters of one linear site, by slot. Not thread-safe: one engine loop owns it."""

    in_features: int
    slices: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The occupied slots in the order that suits the site best: rows sorted that way need no gather."""
        ...

    @property
    def num_bytes(self) -> int:
        """Held on the device, spare capacity included."""
        ...

    def set(self, slot: int, weights: SlotWeights) -> None:
        """Replace the slot's weights. Raises :class:`~sgmv.errors.SgmvArgumentError` and changes nothing."""
        ...

    def clear(self, slot: int) -> None: ...

    def apply(self, y: Tensor, x: Tensor, plan: Plan) -> None:
        """``y[t] += scaling[s] · B[s] (A[s] x[t])`` with ``s`` the plan's slot of row ``t``, in place.

        Rows with a negative or empty slot are not written. No row's result depends on the weights of another's slot,
        not even when those hold NaN or infinity.

        :param y: ``[T, sum(slices)]``, last dimension contiguous.
        :param x: ``[T, in]``, last dimension contiguous.
        :raises SgmvArgumentError: before anything is computed.
        """
        ...


Backend = Callable[[int, Sequence[int], torch.device, torch.dtype], Site]


def _cpu(in_features: int, slices: Sequence[int], device: torch.device, dtype: torch.dtype) -> Site:
    kind = CpuSite if dtype == torch.float32 else TorchSite
    return kind(in_features, slices, device, dtype)


_BACKENDS: dict[str, Backend] = {"cpu": _cpu, "cuda": TorchSite}


def register_backend(device_type: str, backend: Backend) -> None:
    _BACKENDS[device_type] = backend


def backends() -> tuple[str, ...]:
    """Device types that have an implementation."""
    return tuple(sorted(_BACKENDS))


def make_site(
    in_features: int, slices: Sequence[int], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Site:
    """:param slices: output widths that one call serves: ``(q, k, v)``, ``(gate, up)`` or a single one."""
    if in_features < 1 or not slices or min(slices) < 1:
        raise SgmvArgumentError("slices", f"in_features {in_features} and slices {tuple(slices)} have to be positive")
    place = torch.device(device)
    if place.type not in _BACKENDS:
        raise SgmvArgumentError("device", f"{place.type!r} has no backend; there is {', '.join(backends())}")
    return _BACKENDS[place.type](in_features, slices, place, dtype)
