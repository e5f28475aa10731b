"""Runs the batches of all tenants in one process, one of each tenant at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone

from gateway.batches.places import Places
from gateway.batches.work import Work, orm
from gateway.services import Services
from tenants import batch_work
from tenants.models import Batch

logger = logging.getLogger(__name__)

MOST_BATCHES = 16
"""Batches that one process holds at once; each may be waiting for its tenant's limits most of the time."""

MOST_ENDING = 4
"""Fewer of a process's batches than these are cut off: then it takes up others to cut them off, cancelled or past their
time, which wait neither for one of their tenant's nor for room among :data:`MOST_BATCHES`.
"""

GRACE_SECONDS = 60.0
"""When a runner's time is over, no line begins for so long. If one runs even then, all go on for that time once more:
nobody's lines wait for somebody's that take hours.
"""

LOOK_SECONDS = 1.0
REST_AFTER_ERROR = timedelta(seconds=30)


class Runner:
    """:param stopping: asked every second; once it is true, what runs is given up and all batches are put down."""

    def __init__(self, services: Services, stopping: Callable[[], bool]) -> None:
        self._name = uuid4().hex
        self._services = services
        self._stopping = stopping
        self._places = Places(settings.BATCH_CONCURRENCY)
        self._works: dict[asyncio.Task[None], Work] = {}

    async def run(self, seconds: float) -> int:
        """Until nothing waits, or so many seconds have passed and no line runs.

        :returns: how many times a batch was taken up.
        """
        deadline, taken = time.monotonic() + seconds, 0
        try:
            while not self._stopping():
                now = time.monotonic()
                if now > deadline + GRACE_SECONDS:
                    deadline = now + seconds
                over = now > deadline
                self._begin_lines(over)
                taken += await self._take(over)
                if not self._works:
                    return taken
                await asyncio.wait(self._works, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                await self._look()
            return taken
        finally:
            await self._stop()

    def _begin_lines(self, over: bool) -> None:
        """Unless it is over: then, once no line runs, all batches rest."""
        idle = over and not self._places.taken
        if idle:
            for work in self._works.values():
                work.rest(0.0)
        self._places.look(closed=over and not idle)  # what waits for a place has to learn that its batch rests

    async def _take(self, over: bool) -> int:
        """As many as there is room for; once it is over, only such as are to be cut off. Returns how many."""
        taken = 0
        try:
            while (batch := await self._claim(over)) is not None:
                work = Work(self._name, self._services, batch, self._places)
                self._works[asyncio.create_task(self._drive(work))] = work
                taken += 1
        except (DatabaseError, InterfaceError) as error:
            logger.warning("no batch can be taken up: %s", error)
        return taken

    async def _claim(self, over: bool) -> Batch | None:
        batch: Batch | None = None
        works = self._works.values()
        held = [work.batch.pk for work in works]
        if not over and len(works) < MOST_BATCHES:
            batch = await orm(batch_work.claim, self._name, [work.batch.tenant_id for work in works], held)
        if batch is None and sum(work.is_cut for work in works) < MOST_ENDING:
            batch = await orm(batch_work.claim, self._name, None, held)
        return batch

    async def _drive(self, work: Work) -> None:
        try:
            await work.run()
        except Exception:
            logger.exception("batch %s is put down", work.batch)
            await self._put_down(work, timezone.now() + REST_AFTER_ERROR)

    async def _look(self) -> None:
        """Forget what has ended; go on holding the rest, and hear of what happened to it."""
        for task in [task for task in self._works if task.done()]:
            del self._works[task]
        try:
            held = await orm(batch_work.renew, self._name, [work.batch.pk for work in self._works.values()])
        except (DatabaseError, InterfaceError) as error:
            logger.warning("batches cannot be held: %s", error)
            return
        for task, work in self._works.items():
            status = held.get(work.batch.pk)
            if status is None:
                task.cancel()  # somebody else's by now, or ended
            elif status == Batch.Status.CANCELLING:
                work.cut(Batch.Status.CANCELLED)
            elif timezone.now() >= work.batch.expires_at:
                work.cut(Batch.Status.EXPIRED)

    async def _stop(self) -> None:
        for task in self._works:
            task.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        for work in self._works.values():
            await self._put_down(work, None)
        self._works.clear()

    async def _put_down(self, work: Work, resume_at: object) -> None:
        try:
            await orm(batch_work.release, self._name, work.batch, resume_at)
        except (DatabaseError, InterfaceError) as error:
            logger.warning("batch %s stays held for a while: %s", work.batch, error)


async def run(seconds: float, stopping: Callable[[], bool]) -> int:
    """See :meth:`Runner.run`."""
    services = await Services.start()
    try:
        return await Runner(services, stopping).run(seconds)
    finally:
        await services.close()
        await orm(connections.close_all)
