"""What happens to each token between the matrix products: norms, rotation, gate. Torch is the specification."""

from __future__ import annotations

import struct
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cpujit import num_threads, run
from cpujit.tile import supported
from inference.model_config import ModelConfig
from inference.models import loops
from inference.models.rope import Rope

Norms = tuple[Tensor, Tensor]
"""Weights ``[D]`` of the norms of q's heads and of k's."""

# Below so many numbers a second thread costs more than it saves.
_SHARED = 1 << 16


class Pointwise(Protocol):
    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x / sqrt(mean(x²) + eps) · weight`` over the last of ``[T, width]``."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """``[T, 2·width] → [T, width]``: ``silu`` of the first half times the second. May write to its argument."""
        ...

    def heads(self, qkv: Tensor, norms: Norms | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split and rotate. May write to ``qkv``.

        :param qkv: ``[T, (heads + 2·kv_heads)·D]``.
        :param cos: ``[T, 1, D]``, as ``sin``; see :class:`~inference.models.rope.Rope`.
        :returns: q ``[T, heads, D]``, k and v ``[T, kv_heads, D]``; the last dimension is contiguous.
        """
        ...


class TorchPointwise:
    """Any device and dtype."""

    def __init__(self, config: ModelConfig, rope: Rope) -> None:
        self._heads, self._kv_heads, self._dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._eps, self._rope = config.rms_eps, rope

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate).mul_(up)

    def heads(self, qkv: Tensor, norms: Norms | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        every = qkv.view(len(qkv), -1, self._dim)
        qk, v = every[:, : -self._kv_heads], every[:, -self._kv_heads :]
        if norms is not None:
            q, k = qk[:, : self._heads], qk[:, self._heads :]
            qk = torch.cat([self.rms_norm(q, norms[0]), self.rms_norm(k, norms[1])], dim=1)
        qk = self._rope.rotate(qk, cos, sin)
        return qk[:, : self._heads], qk[:, self._heads :], v


class CompiledPointwise:
    """fp32 on the CPU. Not thread-safe: one engine loop owns it.

    A step of 16 tokens runs each of these in 2–8 µs, most of it the call; torch takes 15–30.
    """

    _ROWS = struct.Struct("8q")
    _ROTATE = struct.Struct("12q")

    def __init__(self, config: ModelConfig) -> None:
        self._heads, self._kv_heads, self._dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._eps = torch.tensor([config.rms_eps], dtype=torch.float32)
        self._eps_at = self._eps.data_ptr()
        self._arguments = np.zeros(loops.NUM_ARGUMENTS, np.int64)
        self._call: Any = self._arguments.data
        self._address = int(self._arguments.ctypes.data)
        self._norm, self._gate, self._rotate = loops.RMS_NORM.address, loops.GATE.address, loops.ROTATE.address

    @staticmethod
    def supports(device: torch.device, dtype: torch.dtype) -> bool:
        return device.type == "cpu" and dtype == torch.float32 and supported()

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        rows, width = x.shape
        given = (0, rows, x.data_ptr(), 4 * x.stride(0), out.data_ptr(), width, weight.data_ptr(), self._eps_at)
        self._ROWS.pack_into(self._call, 0, *given)
        run(self._norm, self._address, _threads(out))
        return out

    def gate(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        given = (0, rows, gate_up.data_ptr(), 4 * gate_up.stride(0), out.data_ptr(), width, 0, 0)
        self._ROWS.pack_into(self._call, 0, *given)
        run(self._gate, self._address, _threads(out))
        return out

    def heads(self, qkv: Tensor, norms: Norms | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = qkv.shape[0]  # not len(qkv), which is Python code and takes a microsecond
        q_norm, k_norm = (norms[0].data_ptr(), norms[1].data_ptr()) if norms is not None else (0, 0)
        shape = (self._heads, self._kv_heads, self._dim)
        given = (cos.data_ptr(), sin.data_ptr(), q_norm, k_norm, self._eps_at)
        self._ROTATE.pack_into(self._call, 0, 0, tokens, qkv.data_ptr(), 4 * qkv.stride(0), *shape, *given)
        run(self._rotate, self._address, _threads(qkv))
        every = qkv.view(tokens, -1, self._dim)
        q, k, v = every.split_with_sizes([self._heads, self._kv_heads, self._kv_heads], 1)
        return q, k, v


def make_pointwise(config: ModelConfig, rope: Rope, *, device: torch.device, dtype: torch.dtype) -> Pointwise:
    return CompiledPointwise(config) if CompiledPointwise.supports(device, dtype) else TorchPointwise(config, rope)


def _threads(out: Tensor) -> int:
    return num_threads() if out.numel() >= _SHARED else 1
