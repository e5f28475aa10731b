"""Linears whose weights are held as fp8; ``naive.py`` is the specification, ``README.md`` the maths."""

from fp8_linear.errors import LinearArgumentError
from fp8_linear.naive import linear_naive
from fp8_linear.ops import product
from fp8_linear.weight import FP8, Fp8Weight

__all__ = ["FP8", "Fp8Weight", "LinearArgumentError", "linear_naive", "product"]
