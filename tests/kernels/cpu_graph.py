"""What a CUDA graph does to a step, on a machine without one: every operation again, on the places it had.

Whatever the host knew while the graph was captured is fixed in it: sizes, offsets, which operations there are. Only
what lies in the tensors may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import paged_attention.attention
from fp8_linear import triton_product
from sgmv import triton_embedding, triton_gain, triton_site

KERNELS = (
    (triton_embedding, "embed"),
    (triton_gain, "amplify"),
    (triton_site, "shrink"),
    (triton_site, "expand"),
    (paged_attention.attention, "store"),
    (paged_attention.attention, "attend"),
    (paged_attention.attention, "combine"),
    (triton_product, "multiply"),
    (triton_product, "add_parts"),
)


class CpuGraph(TorchDispatchMode):
    """Inside of it torch's operations and the kernels' launches are kept. :ivar launches: of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self._work: list[Callable[[], None]] = []
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        given = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        fresh = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        if not fresh:
            raise AssertionError(f"{func} tells the host something, which a graph cannot")
        fresh = [each for each in fresh if each.untyped_storage().data_ptr() not in given]

        def again() -> None:
            made = [each for each in tree_leaves(func(*args, **kwargs)) if isinstance(each, Tensor)]
            for place, tensor in zip(fresh, made if fresh else [], strict=True):
                place.copy_(tensor)

        self._work.append(again)
        return found

    def launch(self, kernel: Any, grid: Any, arguments: Any, options: Any) -> None:
        def work() -> None:
            with _disable_current_modes():  # the interpreter's own operations are none of the step's
                kernel[grid](*arguments, **options)

        self.launches += 1
        self._work.append(work)
        work()

    def replay(self) -> None:
        with torch.inference_mode():
            for work in self._work:
                work()


class Capturing:
    """Makes graphs, see :data:`inference.decode_graphs.Capture`. :ivar graphs: all of them, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.graphs: list[CpuGraph] = []
        self.replays = 0
        self._open: CpuGraph | None = None
        for module, name in KERNELS:
            patch.setattr(module, name, _Kernel(getattr(module, name), self))

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        graph = CpuGraph()
        self.graphs.append(graph)
        self._open = graph
        try:
            with graph:
                work()
        finally:
            self._open = None

        def replay() -> None:
            self.replays += 1
            graph.replay()

        return replay

    def launch(self, kernel: Any, grid: Any, arguments: Any, options: Any) -> None:
        if self._open is None:
            kernel[grid](*arguments, **options)
        else:
            self._open.launch(kernel, grid, arguments, options)


class _Kernel:
    def __init__(self, kernel: Any, capturing: Capturing) -> None:
        self._kernel, self._capturing = kernel, capturing

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: self._capturing.launch(self._kernel, grid, arguments, options)
