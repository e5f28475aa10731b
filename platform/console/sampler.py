from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.db import connections

from console import now
from console.lookers import Look, places
from fleet import latency, live
from fleet.models import Worker

REMEMBERED_SECONDS = 60.0


class Sampler:
    """What lookers see, found out once for all of them; on one thread, so with one connection to the database."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live")
        self._asking: asyncio.Task[None] | None = None
        self._workers: list[Worker] = []
        self._asked: dict[str, live.Live] = {}
        self._reports: deque[tuple[float, dict[str, live.Live]]] = deque()

    async def person(self, look: Look) -> int | None:
        """The id of the user who may look there."""
        place = (await self._run(places, [look]))[look]
        return None if place is None else place.user.pk

    async def round(self, looks: Collection[Look]) -> dict[Look, str | None]:
        """What each is shown; ``None``: it may no longer look."""
        shown: dict[Look, str | None]
        shown, operators = await self._run(self._round, looks)
        if not operators:
            return shown
        first = not self._asked
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        if first and self._workers:
            await self._asking
            shown, _ = await self._run(self._round, looks)
        return shown

    async def rest(self) -> None:
        """Nobody looks any more: nothing is kept open."""
        if self._asking is not None:
            await asyncio.wait({self._asking})
        self._asked, self._workers = {}, []
        self._reports.clear()
        await self._run(connections.close_all)

    async def _run(self, work: Any, *args: Any) -> Any:
        return await database_sync_to_async(work, thread_sensitive=False, executor=self._thread)(*args)

    async def _ask(self) -> None:
        """Beside the rounds, as a worker that hangs takes its time to be given up."""
        workers = self._workers
        self._asked = await asyncio.to_thread(live.ask, workers)
        moment = time.monotonic()
        self._reports.append((moment, self._asked))
        while moment - self._reports[0][0] > REMEMBERED_SECONDS:
            self._reports.popleft()

    def _round(self, looks: Collection[Look]) -> tuple[dict[Look, str | None], bool]:
        """As many queries for many as for one."""
        found = places(looks)
        tenants = {place.tenant.pk: place.tenant for place in found.values() if place and place.tenant}
        written = {pk: now.written(figures) for pk, figures in now.of_tenants(tenants.values()).items()}
        operators = any(place is not None and place.tenant is None for place in found.values())
        everybody = now.written(self._of_platform()) if operators else ""
        shown: dict[Look, str | None] = {}
        for look, place in found.items():
            if place is None:
                shown[look] = None
            else:
                shown[look] = everybody if place.tenant is None else written[place.tenant.pk]
        return shown, operators

    def _of_platform(self) -> dict[str, Any]:
        states = Worker.objects.exclude(state=Worker.State.DISABLED).select_related("base_model")
        self._workers = list(states.order_by("name"))
        return now.of_platform(now.loads(self._workers, self._asked), self._first_token())

    def _first_token(self) -> dict[str, Any] | None:
        if not self._reports:
            return None
        earliest = self._reports[0][1]
        grown = [
            (early.report, late.report)
            for name, late in self._asked.items()
            if (early := earliest.get(name)) is not None and early.report is not None and late.report is not None
        ]
        return latency.latencies(grown)["first_token"]
