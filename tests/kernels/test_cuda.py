"""What only a GPU can show: captured graphs, two streams, and that nobody waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from sgmv import FP8, GainRows, Plan, Storage
from sgmv.triton_site import TritonSite
from tests.kernels.test_fixed_plan import IN, MIXES, ROWS, SLICES, WIDTH, Adapter, Step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@contextmanager
def waiting_is_refused() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Captured(Step):
    """The same step as in the interpreter's tests, replayed by CUDA."""

    def capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles the kernels, which a capture cannot
            self._apply()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # As the engine captures: torch keeps tensors of its own from one capture to the next, and those made in this
        # mode refuse a capture outside of it (pytorch issue 166792).
        with torch.inference_mode(), torch.cuda.graph(graph):
            self._apply()
        return graph

    def _apply(self) -> None:
        self.embedding.apply(self.x, self.tokens, self.plan)
        self.gain.apply(self.y, GainRows(self.plan, self.gain.held, self.x.device))
        self.site.apply(self.y, self.x, self.plan)


class _Replays:
    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self) -> None:
        with torch.inference_mode():
            self._graph.replay()


def test_one_captured_graph_serves_every_batch() -> None:
    """Captured with one adapter, replayed with many, with none, with fewer rows, and after slots were overwritten."""
    step = Captured()
    step.load(2, Adapter(2, 8))
    host = step.numbers.begin()
    step.plan.fill(MIXES["one adapter"], host[0])
    host[1][:] = 0
    step.numbers.copy()
    step.recorded = _Replays(step.capture())  # type: ignore[assignment]
    for seed, slots in enumerate(MIXES.values()):
        step.load(seed % 7, Adapter(seed, (1, 8, 16, 17, 64)[seed % 5]))
        step.run(slots, seed)
    for slot in range(7):
        step.clear(slot)
        step.run(MIXES["many"], 30 + slot)


def test_nobody_waits_for_the_device() -> None:
    """Neither a step nor loading nor clearing does."""
    device = torch.device("cuda")
    site = TritonSite(IN, SLICES, device, torch.bfloat16, Storage(slots=4, max_rank=64))
    site.set(0, Adapter(2, 8).linear)
    x = torch.zeros(ROWS, IN, device=device, dtype=torch.bfloat16)
    y = torch.zeros(ROWS, WIDTH, device=device, dtype=torch.bfloat16)
    site.apply(y, x, Plan([0] * ROWS))  # compiles
    with waiting_is_refused():
        for slots in MIXES.values():
            rows = len(slots)
            site.apply(y[:rows], x[:rows], Plan(slots))
            site.set(1, Adapter(4, 17).linear)
            site.clear(1)


def test_two_streams_at_once() -> None:
    """Two steps over two sites, neither waiting for the other, many times: the bits of one after the other."""
    device, slots = torch.device("cuda"), MIXES["many"]
    sites = [TritonSite(IN, SLICES, device, torch.bfloat16, Storage(dtype=kind)) for kind in (None, FP8)]
    for site in sites:
        for slot in range(6):
            site.set(slot, Adapter(slot, 16).linear)
    x = torch.randn(ROWS, IN, device=device, dtype=torch.bfloat16)
    expected = [torch.zeros(ROWS, WIDTH, device=device, dtype=torch.bfloat16) for _ in sites]
    for site, y in zip(sites, expected, strict=True):
        site.apply(y, x, Plan(slots))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sites]
    for _ in range(50):
        found = [torch.zeros_like(y) for y in expected]
        torch.cuda.synchronize()
        for site, stream, y in zip(sites, streams, found, strict=True):
            with torch.cuda.stream(stream):
                site.apply(y, x, Plan(slots))
        torch.cuda.synchronize()
        assert all(torch.equal(y, whole) for y, whole in zip(found, expected, strict=True))
