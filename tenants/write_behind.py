"""What requests leave to be written together a moment later, so that none of them waits for the database."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from tenants.db import Pool


class WriteBehind(ABC):
    """What waits for one pool. One write at a time, at most one more planned, however long the database takes."""

    def __init__(self) -> None:
        self._planned = False
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself does not keep them

    @abstractmethod
    async def write(self, pool: Pool) -> None:
        """Write what waits, if anything does. What fails is logged, and kept or given up; nothing is raised."""

    def soon(self, pool: Pool, seconds: float) -> None:
        """Have it written after so long, with what comes until then. Never waits."""
        if not self._planned:
            self._planned = True
            task = asyncio.get_running_loop().create_task(self._later(pool, seconds))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def flush(self, pool: Pool) -> None:
        """Write it now. Afterwards no write is under way that began before: the pool may be closed."""
        async with self._writing:
            await self.write(pool)

    async def _later(self, pool: Pool, seconds: float) -> None:
        await asyncio.sleep(seconds)
        async with self._writing:
            self._planned = False
            await self.write(pool)
