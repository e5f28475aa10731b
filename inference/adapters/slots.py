"""The decoder's adapter slots: a slot holds one adapter at every place where adapters act, or none."""

from __future__ import annotations

from collections.abc import Iterator

from inference.adapters.host import HostAdapter
from inference.adapters.laid_out import laid_out, moved
from inference.models.lora import AdaptedSite, AdapterSites


class AdapterSlots:
    """:param sites: the decoder's. Only the core's loop calls this, between steps, but for :meth:`prepared`."""

    def __init__(self, sites: AdapterSites, num_slots: int) -> None:
        self.num_slots = num_slots
        self._sites = sites

    def prepared(self, adapter: HostAdapter) -> HostAdapter:
        """As far as the host can, in any thread. A CPU's slots copy the matrices themselves."""
        device, held = self._sites.head.lora.device, self._sites.head.lora.held
        return adapter if device.type == "cpu" else laid_out(adapter, held, pinned=device.type == "cuda")

    def load(self, slot: int, adapter: HostAdapter) -> None:
        """Nothing of what the slot held before remains, at sites the new adapter leaves alone either."""
        self.clear(slot)
        adapter = moved(adapter, self._sites.head.lora.device)
        for sites, layer in zip(self._sites.layers, adapter.layers, strict=True):
            for name, weights in layer.sites.items():
                sites[name].lora.set(slot, weights)
            if adapter.has_gains:
                for name, site in sites.items():
                    site.gain.set(slot, layer.gains.get(name))
        if adapter.embedding is not None:
            self._sites.embedding.set(slot, adapter.embedding)
        if adapter.head is not None:
            self._sites.head.lora.set(slot, adapter.head)
        if adapter.head_gain is not None:
            self._sites.head.gain.set(slot, adapter.head_gain)

    def clear(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot}: there are {self.num_slots}")
        self._sites.embedding.clear(slot)
        for site in self._all():
            site.lora.clear(slot)
            site.gain.clear(slot)

    def order(self) -> dict[int, int]:
        """Slot → rank in the order in which rows are best laid out: that of the first layer's fullest site."""
        fullest: tuple[int, ...] = ()
        for site in self._sites.layers[0].values():
            fullest = max(fullest, site.lora.order, key=len)
        return {slot: rank for rank, slot in enumerate(fullest)}

    @property
    def num_bytes(self) -> int:
        """What the adapters hold on the device."""
        return self._sites.embedding.num_bytes + sum(site.lora.num_bytes + site.gain.num_bytes for site in self._all())

    def _all(self) -> Iterator[AdaptedSite]:
        for layer in self._sites.layers:
            yield from layer.values()
        yield self._sites.head
