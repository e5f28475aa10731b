"""One adapter's matrices at one site, as the loops read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.storage import FP8
from sgmv.weights import SlotWeights

_ALIGNMENT = 16
"""Bytes at whose multiples each matrix begins: what one thread of a GPU loads at a time."""


@dataclass(frozen=True, slots=True)
class LaidOut(SlotWeights):
    """A site's matrices in one piece of memory, as :class:`Operands` hold them: nothing is left to do but to copy it.

    ``a``, ``b`` and ``factors`` are views of it. Held as FP8 they are not the adapter's own numbers, see there.

    :param memory: ``[laid_bytes()]`` uint8: every ``A``, then every ``B`` transposed, then the factors.
    :param dtype: that the matrices are held in.
    """

    memory: Tensor
    dtype: torch.dtype
    factors: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, weights: SlotWeights, dtype: torch.dtype, memory: Tensor) -> LaidOut:
        """A copy. :param memory: what it is written to, where the weights are or elsewhere."""
        sources = [a for a in weights.a if a is not None] + [b.t() for b in weights.b if b is not None]
        scaling = weights.scaling
        if dtype is FP8:
            sources, scaling = _shrunk(sources, weights)
        for view, source in zip(_views(memory, _pieces(weights, dtype)), sources, strict=True):
            view.copy_(source)
        return cls._over(memory, weights, dtype, scaling)

    def on(self, memory: Tensor) -> LaidOut:
        """The same matrices in another memory, which holds what this one does."""
        return self._over(memory, self, self.dtype, self.scaling)

    @classmethod
    def _over(cls, memory: Tensor, shaped: SlotWeights, dtype: torch.dtype, scaling: tuple[float, ...]) -> LaidOut:
        """:param shaped: has the matrices' sizes."""
        ranks = shaped.ranks
        views, slices = _views(memory, _pieces(shaped, dtype)), sum(rank > 0 for rank in ranks)
        b = [view.t() for view in views[slices : 2 * slices]]
        factors = _placed(views[2 * slices :], ranks) if dtype is FP8 else (None,) * len(ranks)
        return cls(_placed(views[:slices], ranks), _placed(b, ranks), scaling, memory, dtype, factors)


class Operands:
    """A copy of :class:`SlotWeights` in one buffer: every ``A``, then every ``B`` transposed, with their true ranks.

    Held as :data:`~sgmv.storage.FP8`, each row ``j`` of ``A`` and of ``Bᵀ`` is divided by its largest number and takes
    a factor: ``s · B A = s' · Σ_j factors[j] · B'[j]ᵀ A'[j]``. The factors of ``Bᵀ`` go into ``factors`` relative to
    their largest, which goes into ``scaling``: a shrunk number times its factor is no smaller than it has to be, so
    that float16 can hold it.

    What is :class:`LaidOut` is copied as it is, and where it is on the device already it is taken, not copied.

    :ivar a: per slice ``[r, in]``, ``None`` where the adapter leaves the slice alone.
    :ivar b: per slice ``[r, out]``, so that adding up scaled rows of it goes through memory in order.
    :ivar factors: per slice ``[r]`` float32, or ``None`` where the matrices are held as they are.
    """

    def __init__(self, weights: SlotWeights, *, device: torch.device, dtype: torch.dtype) -> None:
        """:param dtype: that the matrices are held in."""
        laid = weights if isinstance(weights, LaidOut) else _laid_out(weights, device, dtype)
        if laid.memory.device != device:
            laid = laid.on(laid.memory.to(device, non_blocking=True))
        self.ranks, self.scaling, self.a, self.factors = laid.ranks, laid.scaling, laid.a, laid.factors
        self.b = tuple(None if b is None else b.t() for b in laid.b)
        self._memory = laid.memory

    @property
    def num_bytes(self) -> int:
        return self._memory.nbytes


def laid_bytes(weights: SlotWeights, dtype: torch.dtype) -> int:
    """What :class:`LaidOut` takes."""
    return _starts(_pieces(weights, dtype))[-1]


def check_held(weights: SlotWeights, dtype: torch.dtype) -> None:
    """Raises :class:`SgmvArgumentError` for what was laid out for a site that holds another type."""
    if isinstance(weights, LaidOut) and weights.dtype is not dtype:
        raise SgmvArgumentError("weights", f"laid out as {weights.dtype}, the site holds {dtype}")


def _laid_out(weights: SlotWeights, device: torch.device, dtype: torch.dtype) -> LaidOut:
    """Where they are. From the host to a GPU through pinned memory: the host does not wait for the device."""
    place = next((a.device for a in weights.a if a is not None), device)
    pinned = device.type == "cuda" and place.type == "cpu"
    memory = torch.empty(laid_bytes(weights, dtype), dtype=torch.uint8, device=place, pin_memory=pinned)
    return LaidOut.of(weights, dtype, memory)


_Piece = tuple[torch.dtype, tuple[int, ...]]
"""A tensor's type and shape."""


def _pieces(weights: SlotWeights, dtype: torch.dtype) -> list[_Piece]:
    """In the order in which they lie."""
    shapes = [tuple(a.shape) for a in weights.a if a is not None]
    shapes += [(b.shape[1], b.shape[0]) for b in weights.b if b is not None]
    factors = [(rank,) for rank in weights.ranks if rank] if dtype is FP8 else []
    return [*((dtype, shape) for shape in shapes), *((torch.float32, shape) for shape in factors)]


def _starts(pieces: Sequence[_Piece]) -> list[int]:
    """Where each begins, and where the last ends, in bytes."""
    sizes = [prod(shape) * dtype.itemsize for dtype, shape in pieces]
    return [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]


def _views(memory: Tensor, pieces: Sequence[_Piece]) -> list[Tensor]:
    return [
        memory[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for start, (dtype, shape) in zip(_starts(pieces), pieces, strict=False)
    ]


def _shrunk(sources: list[Tensor], weights: SlotWeights) -> tuple[list[Tensor], tuple[float, ...]]:
    """As FP8, the factors behind them, and the scaling that goes with those.

    :param sources: of ``weights``, every A, then every Bᵀ.
    """
    first_b = len(sources) // 2
    pairs = [_divided(source) for source in sources]
    lengths = [length for _, length in pairs]
    largest = [length.max() for length in lengths[first_b:]]
    factors = [a * b / most for a, b, most in zip(lengths[:first_b], lengths[first_b:], largest, strict=True)]
    rest = iter(torch.stack(largest).tolist())
    scaling = tuple(s * next(rest) if r else s for s, r in zip(weights.scaling, weights.ranks, strict=True))
    return [*(divided for divided, _ in pairs), *factors], scaling


def _divided(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided so that the largest number of each is the type's, and what each was divided by, ``[rows]``."""
    values = matrix.float()
    length = values.abs().amax(1) / torch.finfo(FP8).max
    length = torch.where(length == 0, 1.0, length)
    return (values / length[:, None]).to(FP8), length


def _placed(views: list[Tensor], ranks: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    rest = iter(views)
    return tuple(next(rest) if rank else None for rank in ranks)
