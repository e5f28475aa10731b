"""A quarter of what ``make kernels-check`` compiles, for where the whole takes the test suite too long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelcheck.variants import Variant

ONE_OF = 4


def sample(variants: Iterable[Variant]) -> list[Variant]:
    """Of each kernel one variant of every four in their order: the first of the first four, the second of the next
    four, and so on, since types, shapes and stages come round in fours and twos. So there is at least one of each
    kernel, and it is the same sample each time.
    """
    of_kernel: dict[str, list[Variant]] = defaultdict(list)
    for variant in variants:
        of_kernel[variant.kernel.__name__].append(variant)
    return [
        variant
        for own in of_kernel.values()
        for number, variant in enumerate(own)
        if number % ONE_OF == number // ONE_OF % ONE_OF
    ]
