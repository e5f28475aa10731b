"""One batch in the hands of a runner, from where it stands to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, connections
from django.utils import timezone

from gateway.batches import outputs
from gateway.batches.line_run import LineRun, LineTransport, record_error
from gateway.batches.lines import Line, check, custom_id_of, line_of, read
from gateway.batches.pace import LONGEST_REST, LONGEST_WAIT, Pace, may_succeed_later
from gateway.batches.places import Places
from gateway.errors import ApiError, error_of, overloaded
from gateway.services import Services
from gateway.transport import serve
from tenants import batch_work, files
from tenants.access import Access, access_of_key
from tenants.db import Pool
from tenants.errors import InvalidKey, ModelNotFound
from tenants.models import Batch, File
from tenants.versions import is_version, version_of

logger = logging.getLogger(__name__)

MOST_TRIES = 5
"""How often a line may lose its worker or meet an error of ours before it counts as failed."""

ACCESS_SECONDS = 2.0
Result = TypeVar("Result")
Status = Batch.Status


async def orm(function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Django's ORM, in the one thread that this loop keeps for it."""

    def call() -> Result:
        close_old_connections()
        return function(*arguments, **named)

    return await sync_to_async(call, thread_sensitive=True)()


async def aside(function: Callable[..., Result], *arguments: Any) -> Result:
    """What takes long, in a thread and with a connection of its own: in that of :func:`orm` the runner's holds would
    wait behind it and run out.
    """

    def call() -> Result:
        try:
            return function(*arguments)
        finally:
            connections.close_all()

    return await asyncio.to_thread(call)


class Work:
    """:ivar batch: as it stood when it was taken up.

    :param places: of the lines of all batches of the runner.
    """

    def __init__(self, runner: str, services: Services, batch: Batch, places: Places) -> None:
        self.batch = batch
        self._runner = runner
        self._services = services
        self._places = places
        self._pace = Pace(settings.BATCH_CONCURRENCY)
        self._lines: asyncio.Task[None] | None = None
        self._cut = _cut_of(batch)
        self._rest: float | None = None
        self._access: tuple[float, Access] | None = None
        self._source: Iterator[tuple[int, bytes | None]] | None = None
        self._turn = asyncio.Lock()
        self._reading = 0  # of those that take line after line

    @property
    def is_cut(self) -> bool:
        return self._cut is not None

    @property
    def wants(self) -> int:
        """Lines that it would run now."""
        if self._rest is not None or self._pace.wait():
            return 0
        return min(self._pace.at_once, self._reading)

    def cut(self, status: Status) -> None:
        """Stop its lines now; it ends as ``cancelled`` or ``expired``."""
        if self._cut is None:
            self._cut = status
            if self._lines is not None:
                self._lines.cancel()

    def rest(self, seconds: float) -> None:
        """Begin no further line; when those that run have ended, put the batch down for so long."""
        self._rest = min(max(seconds, self._rest or 0.0), LONGEST_REST)

    async def run(self) -> None:
        """To its end, or until it rests; it is the runner's no more then."""
        batch = self.batch
        if batch.status == Status.VALIDATING and self._cut is None and not await self._validate():
            return
        if batch.status in (Status.VALIDATING, Status.IN_PROGRESS) and self._cut is None:
            await self._run_lines()
            if self._cut is None and self._rest is not None:
                await self._put_down(self._rest)
                return
        await self._end()

    async def _validate(self) -> bool:
        """Whether it goes on."""
        path = await self._input()
        if path is None:
            total, errors = 0, [_gone()]
        else:
            try:
                access = await self._current_access()
                resolve = _resolver(self._services.pool, access)
                total, errors = await asyncio.to_thread(check, path, self.batch.endpoint, resolve)
            except InvalidKey as error:
                total, errors = 0, [{"code": "invalid_api_key", "line": None, "message": str(error), "param": None}]
        if errors:
            await orm(batch_work.fail, self._runner, self.batch, errors)
            return False
        # Nobody else's now, or cancelled a moment ago: then whoever takes it up next sees to it.
        if not await orm(batch_work.begin, self._runner, self.batch, total):
            await orm(batch_work.release, self._runner, self.batch)
            return False
        return True

    async def _run_lines(self) -> None:
        path = await self._input()
        if path is None:
            logger.error("the input file of %s is gone", self.batch)
            self._cut = Status.EXPIRED
            return
        done = await orm(batch_work.done_lines, self.batch)
        self._source = ((number, text) for number, text in read(path) if number not in done)
        self._lines = asyncio.create_task(self._all_lines())
        if self.is_cut:  # while the input was looked for
            self._lines.cancel()
        try:
            await self._lines
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._cut is None or (task is not None and task.cancelling()):
                raise

    async def _all_lines(self) -> None:
        self._reading = settings.BATCH_CONCURRENCY
        with self._places.shared_with(self):
            async with asyncio.TaskGroup() as group:
                for index in range(settings.BATCH_CONCURRENCY):
                    group.create_task(self._one_after_the_other(index))

    async def _one_after_the_other(self, index: int) -> None:
        while True:
            while index >= self._pace.at_once and self._goes_on:  # noqa: ASYNC110 - a limit, a file, a rest: any ends it
                await asyncio.sleep(0.2)
            if (found := await self._next()) is None:
                self._reading -= 1
                return
            try:
                line = line_of(*found, self.batch.endpoint)
            except ApiError as error:  # valid when it was checked, by other settings or another version of this program
                await self._fail(found[0], custom_id_of(*found), error)
            else:
                await self._answer(line)

    @property
    def _goes_on(self) -> bool:
        return self._source is not None and self._rest is None

    async def _next(self) -> tuple[int, bytes | None] | None:
        async with self._turn:
            if self._source is None or self._rest is not None:
                return None
            found = await asyncio.to_thread(next, self._source, None)
            if found is None:
                self._source = None
            return found

    async def _answer(self, line: Line) -> None:
        """Until the line is finished, or the batch rests."""
        tries = 0
        while True:
            if (wait := self._pace.wait()) > LONGEST_WAIT:
                self.rest(wait)
            if self._rest is not None:
                return
            if wait:
                await asyncio.sleep(wait)
                continue
            async with self._places.one(self):
                if self._rest is not None or self._pace.wait():  # since it asked for the place
                    continue
                failed = await self._try(line)
            if failed is None:
                return
            error, request_id = failed
            if error.status in (500, 502):
                tries += 1
                if tries < MOST_TRIES:
                    await asyncio.sleep(2.0**tries)
                    continue
            elif may_succeed_later(error):
                self._pace.refused(error)
                continue
            await self._fail(line.number, line.custom_id, error, request_id)
            return

    async def _fail(self, number: int, custom_id: str, error: ApiError, request_id: UUID | None = None) -> None:
        verdict = await record_error(
            self._services.pool, self.batch, number, custom_id=custom_id, error=error, request_id=request_id
        )
        if verdict == "lost":
            self.rest(1.0)  # the batch takes no more lines: it was cancelled

    async def _try(self, line: Line) -> tuple[ApiError, UUID | None] | None:
        """Why the line is not finished; ``None``: it is."""
        try:
            access = await self._current_access()
        except Exception as error:
            return error_of(error), None
        run = LineRun(self._services, access, line, self._pace.learn)
        transport = LineTransport(self.batch, line)
        try:
            await serve(run, transport, stream=False)
        finally:
            run.close()
        if transport.done:
            self._pace.admitted()
            return None
        why = transport.error or overloaded("The run ended without an answer.")
        if run.admitted is not None and why.status == 401:
            # Stopped in the middle: its next admission says whether the key is gone or only restricted.
            why = overloaded(why.message)
        return why, run.request_id

    async def _current_access(self) -> Access:
        if self._access is None or self._access[0] < time.monotonic():
            found = await access_of_key(self._services.pool, self.batch.key_id)
            self._access = (time.monotonic() + ACCESS_SECONDS, found)
        return self._access[1]

    async def _input(self) -> Path | None:
        def find() -> Path | None:
            # Expired or not: nobody deletes what an unfinished batch reads.
            batch = self.batch
            file: File | None = File.objects.filter(tenant=batch.tenant, pk=batch.input_file_id).first()
            return None if file is None or not files.content_path(file).is_file() else files.content_path(file)

        return await orm(find)

    async def _put_down(self, seconds: float) -> None:
        resume_at = min(timezone.now() + timedelta(seconds=seconds), self.batch.expires_at)
        await orm(batch_work.release, self._runner, self.batch, resume_at)

    async def _end(self) -> None:
        """Write what there is, and finish."""
        batch, cancelled = self.batch, self._cut is Status.CANCELLED
        # One that was finalizing already is of a runner that died over it.
        if (
            not cancelled
            and batch.status != Status.FINALIZING
            and not await orm(batch_work.finalize, self._runner, batch)
        ):
            await orm(batch_work.release, self._runner, batch)  # cancelled a moment ago: whoever takes it up sees it
            return
        began = batch.in_progress_at is not None
        source = await self._input() if began and not cancelled else None
        answers = await aside(outputs.answers, batch)
        failures, missing = await aside(outputs.failures, batch, source)
        if cancelled:
            status = Status.CANCELLED
        else:  # whatever the hour: its time may have run out, or a runner died, after the last line was done
            status = Status.EXPIRED if source is None or missing else Status.COMPLETED
        finished = await orm(batch_work.finish, self._runner, batch, status, answers, failures, unfinished=missing)
        if not finished:
            for path in (answers, failures):
                if path is not None:
                    path.unlink(missing_ok=True)


def _cut_of(batch: Batch) -> Status | None:
    """What it has to end as, as it stands."""
    if batch.status == Status.CANCELLING:
        return Status.CANCELLED
    return Status.EXPIRED if timezone.now() >= batch.expires_at else None


def _resolver(pool: Pool, access: Access) -> Callable[[str], object]:
    """Whether the key may use the model of this name, as a live request finds out: for the thread of a check beside
    this loop. A name with a version is asked for once, however many lines have it.

    What it returns raises :class:`~tenants.errors.ModelNotFound`, and as :func:`~tenants.versions.version_of`.
    """
    loop = asyncio.get_running_loop()

    async def asked(name: str) -> bool:
        try:
            await version_of(pool, access, name)
        except ModelNotFound:
            return False
        return True

    @cache
    def there(name: str) -> bool:
        return asyncio.run_coroutine_threadsafe(asked(name), loop).result()

    def resolve(name: str) -> None:
        if not is_version(name):
            access.resolve(name)
        elif not there(name):
            raise ModelNotFound(name)

    return resolve


def _gone() -> dict[str, Any]:
    return {"code": "file_not_found", "line": None, "message": "The input file is gone.", "param": "input_file_id"}
