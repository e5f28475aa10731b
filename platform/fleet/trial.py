"""Tries an adapter version at a worker, on golden prompts; what comes of it :mod:`tenants.activation` decides.

The requests are nobody's: a cache namespace of their own, no ledger entry, a grant signed for this one digest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import aiohttp
from uuid6 import uuid7

from fleet import advisory_lock
from fleet.dialects.base import Dialect, Job
from fleet.models import Worker
from fleet.router import DIALECTS
from inference.errors import AdapterInvalid, InferenceError, InvalidRequest, WorkerUnavailable
from inference.golden import Golden, Scores, default_prompts, golden_of
from inference.prompt import PromptRenderer
from inference.protocol import Delta, Grant
from tenants import activation, grants
from tenants.activation import Trial
from tenants.errors import TenantsError
from tenants.models import AdapterVersion, BaseModel

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""For a worker to say what it serves. One that accepts connections and says nothing costs no more than this."""

BASE_SECONDS = 60.0
ADAPTER_SECONDS = 120.0
"""For all prompts together, without the adapter and with it, which reading a large one takes the most of."""

START_SECONDS = 120.0
"""After so long no further worker is asked: all in all a trial takes five minutes at most."""

_LOCKS = 0x7472_6961 << 32

_TENANT = "activation"
"""What workers call these requests' tenant: its fair share is its own."""

_ANSWER_TOKENS = 12
_LISTED = 20


class _AdapterFailed(Exception):
    """The worker computed without the adapter, and not with it. :param report: as of the gate."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


def run(version_id: int) -> None:
    """Try a version that waits for it. Harmless to run again; without effect while it runs elsewhere."""
    with advisory_lock.held(_LOCKS | version_id & 0xFFFF_FFFF) as alone:
        if alone:
            _run(version_id)


def _run(version_id: int) -> None:
    rows = AdapterVersion.objects.unscoped().select_related("adapter__base_model")
    version: AdapterVersion | None = rows.filter(pk=version_id, state=AdapterVersion.State.CHECKED).first()
    if version is None:
        return
    base = version.adapter.base_model
    workers = list(
        Worker.objects.filter(base_model=base).exclude(state=Worker.State.DISABLED).order_by("state", "name")
    )
    if not workers:
        activation.waits(version_id, f"No worker of {base} is registered.")
        return
    try:
        golden = None if version.golden is None else golden_of(version.golden)
        prompts = _prompts(base, golden)
        trial = asyncio.run(_tried(workers, base, version.digest, prompts))
    except _AdapterFailed as error:
        if error.final:
            activation.decide(version_id, {"passed": False, "message": str(error)})
        else:
            activation.waits(version_id, str(error), worker_failed=True)
    except AdapterInvalid as error:
        activation.decide(version_id, {"passed": False, "message": str(error)})
    except (InferenceError, TenantsError, OSError) as error:
        activation.waits(version_id, str(error) or type(error).__name__)
    except Exception:  # whatever an adapter provokes, its version does not wait for ever
        logger.exception("the trial of %s failed", version)
        activation.waits(version_id, "The trial failed.", worker_failed=True)
    else:
        activation.decide(version_id, activation.judge(trial, golden, base.fingerprint))


def _prompts(base: BaseModel, golden: Golden | None) -> list[list[int]]:
    """Raises :class:`_AdapterFailed` for references that this base model cannot be asked."""
    renderer = PromptRenderer.load(Path(base.directory))
    if golden is None or golden.base_fingerprint not in (None, base.fingerprint):
        return default_prompts(renderer)
    for number, prompt in enumerate(golden.prompts):
        where = f"golden.json: prompts[{number}].token_ids"
        if max(prompt.token_ids) >= renderer.vocab_size:
            raise _AdapterFailed(f"{where} holds an id that {base} does not have.", final=True)
        if len(prompt.token_ids) + _ANSWER_TOKENS > base.context_length:
            raise _AdapterFailed(f"{where} is longer than the context of {base}.", final=True)
    return [list(prompt.token_ids) for prompt in golden.prompts]


async def _tried(workers: Sequence[Worker], base: BaseModel, digest: str, prompts: list[list[int]]) -> Trial:
    """At the first worker that computes the base model. Raises :class:`~inference.errors.WorkerUnavailable`."""
    problem = ""
    begun = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for worker in workers:
            if time.monotonic() - begun > START_SECONDS:
                break
            dialect = DIALECTS[worker.dialect](worker.url, session)
            try:
                return await _at(worker.name, dialect, base, digest, prompts)
            except InferenceError as error:
                problem = f"The worker {worker.name} cannot try it now: {str(error).rstrip('.')}."
    raise WorkerUnavailable(problem)


async def _at(name: str, dialect: Dialect, base: BaseModel, digest: str, prompts: list[list[int]]) -> Trial:
    async with _within(CHECK_SECONDS):
        served, slots = await dialect.check(), (await dialect.report()).slots
    if served is not None and served != base.fingerprint:
        raise WorkerUnavailable(f"it serves the model {served[:12]}")
    if slots == 0:
        raise WorkerUnavailable("it serves no adapters")

    async def scored(adapter: str | None, tried: list[list[int]]) -> list[tuple[Scores, str]]:
        # The first prompt is also answered, for people to read.
        lengths = [_ANSWER_TOKENS] + [1] * (len(tried) - 1)
        pairs = zip(tried, lengths, strict=True)
        return list(await asyncio.gather(*(_scored(dialect, base, adapter, *pair) for pair in pairs)))

    async with _within(BASE_SECONDS):
        without, again = await asyncio.gather(scored(None, prompts), scored(None, prompts[:1]))
    try:
        async with _within(ADAPTER_SECONDS):
            adapted = await scored(digest, prompts)
    except (AdapterInvalid, InvalidRequest) as error:
        raise _AdapterFailed(f"The worker does not accept the adapter: {error}", final=True) from error
    except WorkerUnavailable as error:
        raise _AdapterFailed(f"The worker {name} failed with the adapter: {error}", final=False) from error
    return Trial(
        worker=name,
        base=[scores for scores, _ in without],
        again=[scores for scores, _ in again],
        adapter=[scores for scores, _ in adapted],
        answers=(without[0][1], adapted[0][1]),
    )


@asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    """Raises :class:`~inference.errors.WorkerUnavailable` when the time is over."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise WorkerUnavailable(f"it did not answer within {seconds:g} s") from None


async def _scored(
    dialect: Dialect, base: BaseModel, adapter: str | None, prompt: list[int], tokens: int
) -> tuple[Scores, str]:
    sampling = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, "logprobs": _LISTED}
    sampling["prompt_logprobs"] = 0
    job = Job(Path(base.directory).name, adapter, prompt, sampling, _grant(base, adapter, len(prompt)))
    deltas: list[Delta] = []
    async with aclosing(dialect.generate(job)) as generated:
        async for delta in generated:
            deltas.append(delta)
    own = next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None), ())
    first = next((delta.logprobs[0] for delta in deltas if delta.logprobs), None)
    if first is None or len(own) != len(prompt) - 1:
        raise WorkerUnavailable("it reports no log-probabilities")
    return Scores(tuple(entry.logprob for entry in own), first.top), "".join(delta.text for delta in deltas)


def _grant(base: BaseModel, adapter: str | None, prompt_tokens: int) -> str:
    return grants.sign(
        Grant(
            request_id=str(uuid7()),
            tenant=_TENANT,
            namespace=f"{_TENANT}-{uuid4().hex}",
            base=base.fingerprint,
            adapter=adapter,
            max_input=prompt_tokens,
            max_output=_ANSWER_TOKENS,
            priority=0,
            weight=1,
            expires_at=int(time.time()) + grants.START_WITHIN_SECONDS,
        )
    )
