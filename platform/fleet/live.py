"""How workers are right now, asked of all of them at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp

from fleet.dialects.report import Report
from fleet.models import Worker
from fleet.router import DIALECTS
from inference.errors import InferenceError

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Live:
    """:param problem: why it serves nothing now; ``None``: it does. :param report: what it said, if anything."""

    problem: str | None
    report: Report | None


def ask(workers: Iterable[Worker]) -> dict[str, Live]:
    """By the workers' names; takes at most :data:`PATIENCE_SECONDS`. Never raises for what a worker does.

    Select the workers with their ``base_model``. Not from within a running event loop.
    """
    known = list(workers)
    fingerprints = [worker.base_model.fingerprint for worker in known]  # read here: the loop must not ask the database
    return asyncio.run(_ask(known, fingerprints))


async def _ask(workers: list[Worker], fingerprints: list[str]) -> dict[str, Live]:
    async with aiohttp.ClientSession() as session:
        pairs = zip(workers, fingerprints, strict=True)
        found = await asyncio.gather(*(_one(worker, fingerprint, session) for worker, fingerprint in pairs))
    return {worker.name: live for worker, live in zip(workers, found, strict=True)}


async def _one(worker: Worker, fingerprint: str, session: aiohttp.ClientSession) -> Live:
    dialect = DIALECTS[worker.dialect](worker.url, session)
    report: Report | None = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            report = await dialect.report()
            served = await dialect.check()
    except TimeoutError:
        return Live(f"did not answer within {PATIENCE_SECONDS:g} s", report)
    except InferenceError as error:
        return Live(str(error) or type(error).__name__, report)
    except Exception as error:
        # Whatever answers at a registered address, it must not hide the others.
        logger.exception("worker %s: its answer cannot be read", worker.name)
        return Live(f"its answer cannot be read: {type(error).__name__}", report)
    if served is not None and served != fingerprint:
        return Live(f"serves model {served[:12]}, registered as {fingerprint[:12]}", report)
    return Live(None, report)


def described(worker: Worker, now: Live) -> dict[str, Any]:
    """As commands and the API show a worker. ``load`` is ``None`` where it said nothing."""
    report = now.report
    load = None
    if report is not None:
        load = {
            "running": report.running,
            "waiting": report.waiting,
            "kv_usage": report.kv_usage,
            "kv_blocks": report.kv_blocks,
            "slots": report.slots,
            "resident": list(report.resident),
            "adapters_loading": report.adapters_loading,
            "preemptions": report.preemptions,
            "version": report.version,
            "weights": report.weights,
        }
    return {
        "name": worker.name,
        "url": worker.url,
        "model": worker.base_model.name,
        "dialect": worker.dialect,
        "state": worker.state,
        "problem": now.problem,
        "load": load,
    }
