"""The decoder's adapter slots: a slot holds one adapter at every site of every layer, or none."""

from __future__ import annotations

from collections.abc import Sequence

from inference.adapters.host import HostAdapter
from sgmv import Site


class AdapterSlots:
    """:param sites: the decoder's, per layer. Only the core's loop calls this, between steps."""

    def __init__(self, sites: Sequence[dict[str, Site]], num_slots: int) -> None:
        self.num_slots = num_slots
        self._sites = sites

    def load(self, slot: int, adapter: HostAdapter) -> None:
        """Nothing of what the slot held before remains, at sites the new adapter leaves alone either."""
        self._check(slot)
        for layer, weights in zip(self._sites, adapter.sites, strict=True):
            for name, site in layer.items():
                if name in weights:
                    site.set(slot, weights[name])
                else:
                    site.clear(slot)

    def clear(self, slot: int) -> None:
        self._check(slot)
        for layer in self._sites:
            for site in layer.values():
                site.clear(slot)

    def order(self) -> dict[int, int]:
        """Slot → rank in the order in which rows are best laid out: that of the first layer's fullest site."""
        fullest: tuple[int, ...] = ()
        for site in self._sites[0].values() if self._sites else ():
            fullest = max(fullest, site.order, key=len)
        return {slot: rank for rank, slot in enumerate(fullest)}

    @property
    def num_bytes(self) -> int:
        """What the adapters hold on the device."""
        return sum(site.num_bytes for layer in self._sites for site in layer.values())

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot}: there are {self.num_slots}")
