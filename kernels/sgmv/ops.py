"""Chooses the implementation for a device. Backends register here; the engine asks only for a :class:`Site`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sgmv.cpu import CpuSite
from sgmv.embedding import EmbeddingSite
from sgmv.errors import SgmvArgumentError
from sgmv.gain import Gain
from sgmv.plan import Plan
from sgmv.storage import Storage
from sgmv.torch_site import TorchSite
from sgmv.weights import SlotWeights


class Site(Protocol):
    """The adapters of one linear site, by slot. Not thread-safe: one engine loop owns it.

    :ivar held: the type that matrices are held in, see :class:`~sgmv.storage.Storage`.
    """

    device: torch.device
    held: torch.dtype
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
        """Replace the slot's weights. Raises :class:`~sgmv.errors.SgmvArgumentError` and changes nothing.

        :param weights: :class:`~sgmv.operands.LaidOut` on the site's device they are taken as they are, not copied.
        """
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


Backend = Callable[[int, Sequence[int], torch.device, torch.dtype, Storage], Site]


def _cpu(in_features: int, slices: Sequence[int], device: torch.device, dtype: torch.dtype, storage: Storage) -> Site:
    kind = CpuSite if dtype == torch.float32 and storage.dtype is None else TorchSite
    return kind(in_features, slices, device, dtype, storage)


def _cuda(in_features: int, slices: Sequence[int], device: torch.device, dtype: torch.dtype, storage: Storage) -> Site:
    """Triton's kernels where they are made for the type. Imported here: a CPU needs no Triton."""
    from sgmv.triton_site import WEIGHTS, TritonSite

    kind = TritonSite if dtype in WEIGHTS else TorchSite
    return kind(in_features, slices, device, dtype, storage)


_BACKENDS: dict[str, Backend] = {"cpu": _cpu, "cuda": _cuda}


def register_backend(device_type: str, backend: Backend) -> None:
    _BACKENDS[device_type] = backend


def backends() -> tuple[str, ...]:
    """Device types that have an implementation."""
    return tuple(sorted(_BACKENDS))


def make_site(
    in_features: int,
    slices: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    storage: Storage | None = None,
) -> Site:
    """:param slices: output widths that one call serves: ``(q, k, v)``, ``(gate, up)`` or a single one."""
    if in_features < 1 or not slices or min(slices) < 1:
        raise SgmvArgumentError("slices", f"in_features {in_features} and slices {tuple(slices)} have to be positive")
    place = torch.device(device)
    if place.type not in _BACKENDS:
        raise SgmvArgumentError("device", f"{place.type!r} has no backend; there is {', '.join(backends())}")
    return _BACKENDS[place.type](in_features, slices, place, dtype, storage or Storage())


def make_gain(
    width: int,
    bias: Tensor | None,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    storage: Storage | None = None,
) -> Gain:
    """See :class:`sgmv.gain.Gain`; Triton's kernel on CUDA."""
    return _gain_kind(device, dtype)(width, bias, device=device, dtype=dtype, storage=storage)


def make_embedding(
    vocabulary: int,
    hidden: int,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    storage: Storage | None = None,
) -> EmbeddingSite:
    """See :class:`sgmv.embedding.EmbeddingSite`; Triton's kernel on CUDA."""
    return _embedding_kind(device, dtype)(vocabulary, hidden, device=device, dtype=dtype, storage=storage)


def _gain_kind(device: torch.device | str, dtype: torch.dtype) -> type[Gain]:
    if torch.device(device).type == "cuda":
        from sgmv.triton_gain import TritonGain
        from sgmv.triton_site import WEIGHTS

        return TritonGain if dtype in WEIGHTS else Gain
    return Gain


def _embedding_kind(device: torch.device | str, dtype: torch.dtype) -> type[EmbeddingSite]:
    if torch.device(device).type == "cuda":
        from sgmv.triton_embedding import TritonEmbeddingSite
        from sgmv.triton_site import WEIGHTS

        return TritonEmbeddingSite if dtype in WEIGHTS else EmbeddingSite
    return EmbeddingSite
