"""The loops of :mod:`inference.models.pointwise`: what happens to each token between the matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cpujit import Kernel, float32s, int64s, next_item
from cpujit.exponential import exp

# Tokens of one item.
ITEM = 16

# What the loops get, an int64 each. Strides are in bytes.
COUNTER, TOKENS, IN, IN_STRIDE, OUT, WIDTH, WEIGHT, EPS = range(8)
HEADS, KV_HEADS, DIM, COS, SIN, Q_NORM, K_NORM, NORM_EPS = range(4, 12)
NUM_ARGUMENTS = 12


# A sum may be taken in any order as long as it is always the same one: compiled once, it is.
@njit(forceinline=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def _normalise(out: Any, x: Any, weight: Any, eps: Any) -> None:
    """``out = x / sqrt(mean(x²) + eps) · weight``; ``out`` may be ``x``."""
    total = np.float32(0)
    for index in range(len(x)):
        total += x[index] * x[index]
    scale = np.float32(1) / np.sqrt(total / np.float32(len(x)) + eps)
    for index in range(len(x)):
        out[index] = x[index] * scale * weight[index]


def _rms_norm(arguments: Any) -> None:
    given = int64s(arguments, (NUM_ARGUMENTS,))
    width, tokens = given[WIDTH], given[TOKENS]
    weight, eps = float32s(given[WEIGHT], (width,)), float32s(given[EPS], (1,))[0]
    while True:
        item = next_item(arguments)
        if item * ITEM >= tokens:
            break
        for token in range(item * ITEM, min(tokens, (item + 1) * ITEM)):
            x = float32s(given[IN] + token * given[IN_STRIDE], (width,))
            _normalise(float32s(given[OUT] + 4 * token * width, (width,)), x, weight, eps)


def _gate(arguments: Any) -> None:
    """``silu(gate) · up`` of rows ``[gate, up]``, each half ``width`` wide."""
    given = int64s(arguments, (NUM_ARGUMENTS,))
    width, tokens = given[WIDTH], given[TOKENS]
    while True:
        item = next_item(arguments)
        if item * ITEM >= tokens:
            break
        for token in range(item * ITEM, min(tokens, (item + 1) * ITEM)):
            gate = float32s(given[IN] + token * given[IN_STRIDE], (width,))
            up = float32s(given[IN] + token * given[IN_STRIDE] + 4 * width, (width,))
            out = float32s(given[OUT] + 4 * token * width, (width,))
            for index in range(width):
                out[index] = gate[index] / (np.float32(1) + exp(-gate[index])) * up[index]


def _rotate(arguments: Any) -> None:
    """Norms of q's and k's heads where there are any, then the rotation; in place in rows ``[q, k, …]``."""
    given = int64s(arguments, (NUM_ARGUMENTS,))
    tokens, heads, dim = given[TOKENS], given[HEADS], given[DIM]
    half = dim // 2
    while True:
        item = next_item(arguments)
        if item * ITEM >= tokens:
            break
        for token in range(item * ITEM, min(tokens, (item + 1) * ITEM)):
            cos, sin = float32s(given[COS] + 4 * token * dim, (dim,)), float32s(given[SIN] + 4 * token * dim, (dim,))
            for head in range(heads + given[KV_HEADS]):
                x = float32s(given[IN] + token * given[IN_STRIDE] + 4 * head * dim, (dim,))
                norm = given[Q_NORM] if head < heads else given[K_NORM]
                if norm != 0:
                    _normalise(x, x, float32s(norm, (dim,)), float32s(given[NORM_EPS], (1,))[0])
                for low in range(half):
                    high = low + half
                    a, b = x[low], x[high]
                    x[low] = a * cos[low] + b * sin[low]
                    x[high] = b * cos[high] + a * sin[high]


RMS_NORM, GATE, ROTATE = Kernel(_rms_norm), Kernel(_gate), Kernel(_rotate)
