"""Which part of a model a rank computes. Torch-free, so that a front can refuse a number of ranks that cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inference.errors import ConfigError
from inference.model_config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``rank`` of ``size``, counted from 0.

    A rank's model is the whole one with fewer heads and fewer columns between them: its configuration says how many,
    and any weight is cut where its shape in that configuration is smaller. So q, k, v, gate and up lose outputs, o and
    down lose inputs, norms and embedding stay whole. Query heads follow their KV heads: both are cut in order. The head
    is cut by :meth:`spread`.
    """

    rank: int = 0
    size: int = 1

    def config(self, whole: ModelConfig) -> ModelConfig:
        """Of this part. Raises :class:`ConfigError` naming what ``size`` does not divide."""
        parts = {
            "num_attention_heads": whole.num_heads,
            "num_key_value_heads": whole.num_kv_heads,
            "intermediate_size": whole.intermediate_size,
        }
        for key, number in parts.items():
            if number % self.size:
                raise ConfigError(f"--tensor-parallel {self.size} does not divide the model's {key} of {number}")
        return replace(
            whole,
            num_heads=whole.num_heads // self.size,
            num_kv_heads=whole.num_kv_heads // self.size,
            intermediate_size=whole.intermediate_size // self.size,
        )

    def cut(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """What of ``tensor`` belongs to this part, as a view. :param shape: the part's; equal where it is not cut."""
        for dimension, size in enumerate(shape):
            if tensor.shape[dimension] != size:
                tensor = tensor.narrow(dimension, self.rank * size, size)
        return tensor

    def spread(self, tensor: Tensor) -> Tensor:
        """This part's rows of a vocabulary, which ``size`` need not divide: after the last row come zeros."""
        if self.size == 1:
            return tensor
        count = -(-len(tensor) // self.size)
        part = tensor[self.rank * count : (self.rank + 1) * count]
        padded = tensor.new_zeros(count, *tensor.shape[1:])
        padded[: len(part)] = part
        return padded


WHOLE = Shard()
