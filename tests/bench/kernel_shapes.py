"""Which products the kernels' benchmark measures: the sites of models, and the batches that meet them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

RANKS = (8, 16, 32, 64, 128)
TOKENS = (1, 8, 32, 64, 128, 2048)
ADAPTERS = (1, 8, 64)
"""And as many as there are tokens."""
PREFILL = 2048
"""From so many tokens on a batch is a prompt's, not one of decoding sequences."""


@dataclass(frozen=True, slots=True)
class Model:
    """:param kv: width of k, and of v. :param feed: of gate, and of up."""

    name: str
    layers: int
    hidden: int
    kv: int
    feed: int

    def sites(self) -> tuple[Site, ...]:
        return (
            Site(self, "qkv", self.hidden, (self.hidden, self.kv, self.kv)),
            Site(self, "o", self.hidden, (self.hidden,)),
            Site(self, "gate_up", self.hidden, (self.feed, self.feed)),
            Site(self, "down", self.feed, (self.hidden,)),
        )


@dataclass(frozen=True, slots=True)
class Site:
    """One fused linear. :param inputs: K. :param slices: output widths, side by side."""

    model: Model
    name: str
    inputs: int
    slices: tuple[int, ...]

    @property
    def width(self) -> int:
        return sum(self.slices)


MODELS = {
    "8b": Model("8b", 32, 4096, 1024, 14336),
    "70b": Model("70b", 80, 8192, 1024, 28672),
    "tiny": Model("tiny", 2, 64, 16, 224),
}
"""Llama-3's, and one for Triton's interpreter, whose every instruction takes a CPU milliseconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A batch at a site. :param rank: of every adapter. :param adapters: distinct ones, each with as many rows."""

    site: Site
    rank: int
    tokens: int
    adapters: int

    @property
    def slots(self) -> list[int]:
        """Each row's adapter: in order, as the engine lays rows out, which suits every column best."""
        return [row * self.adapters // self.tokens for row in range(self.tokens)]

    @property
    def kind(self) -> str:
        """Of which shape class it is."""
        phase = "prefill" if self.tokens >= PREFILL else "decode" if self.tokens > 1 else "one token"
        if self.tokens == 1:
            return phase
        mix = {1: "one adapter", self.tokens: "all distinct"}.get(self.adapters, "shared adapters")
        return f"{phase}, {mix}"

    def adapter_bytes(self, itemsize: int) -> int:
        """All its adapters' matrices at the site."""
        return self.adapters * self.rank * (len(self.site.slices) * self.site.inputs + self.site.width) * itemsize

    def floor_bytes(self, itemsize: int, held: int | None = None) -> int:
        """What any implementation has to move: each adapter once, x once, y read once and written once.

        :param held: of a number of the adapters' matrices, where it is not ``itemsize``.
        """
        return self.adapter_bytes(held or itemsize) + self.tokens * (self.site.inputs + 2 * self.site.width) * itemsize

    def __str__(self) -> str:
        name = f"{self.site.model.name} {self.site.name}"
        return f"{name:12} r {self.rank:<3} T {self.tokens:<4} adapters {self.adapters:<4}"


def cases(
    models: Iterable[str], ranks: Iterable[int] = RANKS, tokens: Iterable[int] = TOKENS, sites: Iterable[str] = ()
) -> Iterator[Case]:
    """:param sites: their names; none: all."""
    wanted, ranks, tokens = set(sites), tuple(ranks), tuple(tokens)
    for model in models:
        for site in MODELS[model].sites():
            if wanted and site.name not in wanted:
                continue
            for rank in ranks:
                for count in tokens:
                    for adapters in sorted({number for number in (*ADAPTERS, count) if number <= count}):
                        yield Case(site, rank, count, adapters)
