from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import ClassVar, cast

import aiohttp

from fleet.dialects.base import Capabilities, Dialect, Job, Probe
from fleet.dialects.metrics import read_probe
from fleet.dialects.report import Report, read_report
from inference.client import WorkerClient
from inference.errors import AdapterNotFound, InvalidRequest, WorkerUnavailable
from inference.protocol import Delta
from tenants.grants import operator_token


class NativeDialect(Dialect):
    """The project's own worker: vLLM's dialect with a signed grant; the adapter's digest is the model's name."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        token_ids=True, dynamic_load=True, cache_salt=True, residency=True, public_prefixes=True
    )

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._client = WorkerClient(url, session)

    async def check(self) -> str | None:
        health = await self._client.health()
        fingerprint = health.get("fingerprint")
        if not isinstance(fingerprint, str):
            raise WorkerUnavailable("/health names no fingerprint: is this a loraplex worker?")
        return fingerprint

    async def probe(self) -> Probe:
        return read_probe(await self._client.metrics_text(operator_token()))

    async def report(self) -> Report:
        return read_report(await self._client.metrics_text(operator_token()))

    async def load(self, digest: str) -> None:
        try:
            await self._client.load_adapter(digest, None, operator_token())
        except InvalidRequest as error:
            if "already loaded" not in str(error):
                raise

    async def unload(self, digest: str) -> None:
        with suppress(AdapterNotFound):
            await self._client.unload_adapter(digest, operator_token())

    async def public_prefixes(self) -> set[str]:
        return await self._client.public_prefixes(operator_token())

    async def declare_prefix(self, digest: str | None, tokens: Sequence[int]) -> None:
        await self._client.declare_prefix(digest, tokens, operator_token())

    async def withdraw_prefix(self, prefix: str) -> None:
        with suppress(AdapterNotFound):
            await self._client.withdraw_prefix(prefix, operator_token())

    async def generate(self, job: Job) -> AsyncGenerator[Delta, None]:
        body = {
            **job.sampling,
            "model": job.digest or job.base,
            "prompt": list(job.prompt),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        # An async generator in all but its declared type: closing it is what aborts the request at the worker.
        generated = cast(AsyncGenerator[Delta, None], self._client.generate(body, job.grant))
        async with aclosing(generated) as deltas:
            async for delta in deltas:
                yield delta
