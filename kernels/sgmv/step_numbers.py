"""A step's integers on their way to the device: one array, one copy, always to the same place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sgmv.errors import SgmvArgumentError
from sgmv.plan import aligned

Ints = npt.NDArray[np.int32]


class StepNumbers:
    """Parts of one int32 array, for a captured graph to read.

    :param sizes: numbers of each part; what has no fixed length goes into the last.
    :ivar parts: where each lies on the device; they never move.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        if not sizes or min(sizes) < 0:
            raise SgmvArgumentError("sizes", f"{tuple(sizes)}; one size at least, and none below 0")
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + aligned(size))
        self._bounds = [(start, start + size) for (start, _), size in zip(pairwise(starts), sizes, strict=True)]
        self._device = torch.zeros(starts[-1], dtype=torch.int32, device=device)
        self.parts = tuple(self._device[start:stop] for start, stop in self._bounds)
        self._host: Tensor | None = None

    def begin(self) -> tuple[Ints, ...]:
        """Parts to fill, on the host, for one :meth:`copy`. What they hold is not known.

        They are another place each time where that of the step before is still being copied: torch keeps pinned memory
        until a copy from it is done, so that a step can be laid out while others run.
        """
        self._host = torch.empty(len(self._device), dtype=torch.int32, device="cpu", pin_memory=self._device.is_cuda)
        whole = self._host.numpy()
        return tuple(whole[start:stop] for start, stop in self._bounds)

    def copy(self, last: int | None = None) -> None:
        """Copy what :meth:`begin` gave, in the order of the device's stream. :param last: so much of the last part."""
        if self._host is None:
            raise SgmvArgumentError("copy", "begin() comes before it, once for each")
        start, stop = self._bounds[-1]
        if last is not None and not 0 <= last <= stop - start:
            raise SgmvArgumentError("last", f"{last}; the last part has {stop - start} numbers")
        used = stop if last is None else start + last
        self._device[:used].copy_(self._host[:used], non_blocking=True)
        self._host = None
