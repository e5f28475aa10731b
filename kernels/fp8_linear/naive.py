"""The specification."""

from __future__ import annotations

from torch import Tensor


def linear_naive(
    x: Tensor, numbers: Tensor, scales: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """``y[t, n] = scales[n] · Σ_k x[t, k] · numbers[n, k] (+ bias[n]) (+ residual[t, n])``, in the type of x.

    :param x: ``[T, K]``. :param numbers: ``[N, K]``, float8_e4m3fn. :param scales: ``[N]``.
    :param bias: ``[N]``. :param residual: ``[T, N]``.
    """
    y = (x @ numbers.to(x.dtype).T) * scales.to(x.dtype)
    if bias is not None:
        y = y + bias.to(x.dtype)
    if residual is not None:
        y = y + residual.to(x.dtype)
    return y
