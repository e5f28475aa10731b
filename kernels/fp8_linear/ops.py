"""Chooses the implementation for a device."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fp8_linear.errors import LinearArgumentError
from fp8_linear.naive import linear_naive
from fp8_linear.weight import Fp8Weight


def product(x: Tensor, weight: Fp8Weight, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
    """``x Wᵀ (+ bias) (+ residual)``, a fresh tensor, summed in float32: see :func:`~fp8_linear.naive.linear_naive`.

    On CUDA a row's bits are the same alone and in any batch. On the CPU the specification computes: any type, slowly.

    :param x: ``[T, K]``, bfloat16 or float16, last dimension contiguous. :param bias: ``[N]``, in that type.
    :param residual: ``[T, N]``, in that type, last dimension contiguous.
    :raises LinearArgumentError: before anything is computed.
    """
    outputs, inputs = weight.numbers.shape
    _check("x", x, (len(x), inputs), x, weight)
    if bias is not None:
        _check("bias", bias, (outputs,), x, weight)
    if residual is not None:
        _check("residual", residual, (len(x), outputs), x, weight)
    if x.device.type not in _BACKENDS:
        raise LinearArgumentError("x", f"on {x.device}; there is {' and '.join(_BACKENDS)}")
    return _BACKENDS[x.device.type](x, weight, bias, residual)


Backend = Callable[[Tensor, Fp8Weight, Tensor | None, Tensor | None], Tensor]


def _cpu(x: Tensor, weight: Fp8Weight, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    return linear_naive(x.float(), weight.numbers, weight.scales, bias, residual).to(x.dtype)


def _cuda(x: Tensor, weight: Fp8Weight, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """Imported here: a CPU needs no Triton."""
    from fp8_linear.triton_product import multiplied

    return multiplied(x, weight, bias, residual)


_BACKENDS: dict[str, Backend] = {"cpu": _cpu, "cuda": _cuda}


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], x: Tensor, weight: Fp8Weight) -> None:
    if tensor.shape != shape:
        raise LinearArgumentError(name, f"shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype is not x.dtype:
        raise LinearArgumentError(name, f"has to be {x.dtype}, as x is, not {tensor.dtype}")
    if tensor.device != weight.bytes.device:
        raise LinearArgumentError(name, f"on {tensor.device}, the weight is on {weight.bytes.device}")
    if tensor.stride(-1) != 1 and tensor.numel() and tensor.shape[-1] > 1:
        raise LinearArgumentError(name, "its last dimension has to be contiguous")
