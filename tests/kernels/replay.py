"""What a CUDA graph keeps of a step, on a machine without one: launches with the arguments they had, run again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Recorded:
    """Launches of Triton's kernels. :meth:`replay` runs them again as a graph would.

    Grids, sizes and places are those of the recording: only what lies at the places may have changed. Tensors that were
    made while recording are kept, as a graph's own memory is.
    """

    def __init__(self) -> None:
        self.launches: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = []

    def replay(self) -> None:
        for kernel, grid, arguments, options in self.launches:
            kernel[grid](*arguments, **options)


class _Recorder:
    def __init__(self, kernel: Any, recorded: Recorded) -> None:
        self._kernel, self._recorded = kernel, recorded

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            self._recorded.launches.append((self._kernel, grid, arguments, options))
            self._kernel[grid](*arguments, **options)

        return launch


@contextmanager
def recording(*kernels: tuple[Any, str]) -> Iterator[Recorded]:
    """:param kernels: where each stands: module and name."""
    recorded = Recorded()
    with pytest.MonkeyPatch.context() as patch:
        for module, name in kernels:
            patch.setattr(module, name, _Recorder(getattr(module, name), recorded))
        yield recorded
