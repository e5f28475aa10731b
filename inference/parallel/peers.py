"""The other ranks as a model's layers see them, and as what drives a model does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from inference.core.step import Row
from inference.parallel.shard import Shard


class Peers(Protocol):
    """What ranks compute together. All of them call the same methods in the same order with the same shapes.

    :ivar shard: this process's.
    """

    shard: Shard

    def sum(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over all ranks, in place."""
        ...

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """On rank 0 every rank's, in their order; nothing on the others."""
        ...


class Followers(Protocol):
    """The ranks that do not schedule: they are told what rank 0 begins to compute, so that they do it too."""

    def compute(self, rows: Sequence[Row]) -> None:
        """These rows, in this order."""
        ...

    def score(self, places: Sequence[int], slots: Sequence[int]) -> None:
        """The logits at ``places`` of the tokens computed last. :param slots: the adapter's of each."""
        ...
