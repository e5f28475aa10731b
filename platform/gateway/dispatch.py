"""An admitted request on its way to the best worker, and to the next where that fails before its first token."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fleet.dialects.base import Job
from fleet.locality import prefix_chain
from fleet.replica import Replica
from gateway.schemas import AnyRequest
from gateway.services import Services
from inference.errors import (
    AdapterInvalid,
    AdapterNotFound,
    EngineDead,
    InferenceError,
    InvalidRequest,
    Overloaded,
    WorkerUnavailable,
)
from inference.protocol import Constraint, Delta
from tenants import grants
from tenants.access import Access, ServedModel
from tenants.admission import Admitted

logger = logging.getLogger(__name__)

_PASSING = (WorkerUnavailable, EngineDead, Overloaded)

MOST_WORKERS_TRIED = 2
"""Those aside that only lack the adapter: they say so at once."""


class Dispatch:
    """Of one request.

    :param name: the request's, for the log.
    :ivar begun: a worker may have begun to compute it, and has not failed since.
    """

    def __init__(self, services: Services, access: Access, request: AnyRequest, name: str) -> None:
        self.begun = False
        self._services = services
        self._access = access
        self._request = request
        self._name = name

    async def deltas(
        self, model: ServedModel, prompt: Sequence[int], admitted: Admitted
    ) -> AsyncGenerator[Delta, None]:
        """Raises what workers raise; of the last one tried where several failed, and of one that has the adapter before
        one that has not.
        """
        forced = await self._forced_call(model)
        sampling = self._sampling(admitted, forced)
        job = Job(model.base, model.adapter_digest, prompt, sampling, grants.signed_now(admitted.grant))
        candidates = await self._services.router.candidates(
            fingerprint=model.fingerprint,
            digest=model.adapter_digest,
            namespace=str(self._access.tenant_id),
            prompt=prompt,
        )
        able = [replica for replica in candidates if replica.refused(job) is None] or candidates
        tried = able[:MOST_WORKERS_TRIED]
        failed: InferenceError | None = None
        for replica in tried:
            answered = False
            try:
                self.begun = True
                if replica is not tried[0]:
                    job = dataclasses.replace(job, grant=grants.signed_now(admitted.grant))
                async with aclosing(replica.generate(job)) as deltas:
                    async for delta in deltas:
                        if not answered and replica is not tried[0]:
                            self._note_prefix(replica, job)
                        answered = True
                        yield delta
                return
            except InferenceError as error:
                lacking = _lacks(error, job.digest)
                if answered or not (lacking or isinstance(error, _PASSING)):
                    _name_as_asked(error, forced)
                    raise
                self.begun = False  # whoever leaves while another is looked for has had nothing
                if lacking:
                    replica.note_lacking(job.digest)
                    tried += [other for other in able if other not in tried and not other.lacks(job.digest)][:1]
                else:
                    failed = error
                    if replica is tried[-1] and replica in candidates and not isinstance(error, Overloaded):
                        tried += await self._newcomer(model, [*candidates, *tried])
                if replica is tried[-1]:
                    if failed is None or failed is error:
                        raise
                    raise failed from error
                logger.warning("request %s: worker %s failed, trying another: %s", self._name, replica.name, error)

    async def _newcomer(self, model: ServedModel, tried: Sequence[Replica]) -> list[Replica]:
        """One worker that was not known, if there is any."""
        found = await self._services.router.newcomers(model.fingerprint, model.adapter_digest, tried)
        return found[:1]

    def _note_prefix(self, replica: Replica, job: Job) -> None:
        """The router noted the prompt where it went first; it is cached where it was computed."""
        namespace = str(self._access.tenant_id)
        chain = prefix_chain(fingerprint=replica.fingerprint, digest=job.digest, namespace=namespace, prompt=job.prompt)
        replica.prefixes.add(chain, namespace)

    def _sampling(self, admitted: Admitted, forced: Constraint | None) -> dict[str, Any]:
        sampling = self._request.sampling()
        if (named := self._request.most_tokens) is not None:  # else the worker's context and the grant end the answer
            sampling["max_tokens"] = 0 if named == 0 else admitted.max_tokens
        if forced is not None:
            sampling["structured_outputs"] = {"json": forced.source}
            sampling.pop("stop", None)  # nothing but the call is written, and its end is known
            sampling.pop("stop_token_ids", None)
        return sampling

    async def _forced_call(self, model: ServedModel) -> Constraint | None:
        """What the answer has to be where a tool has to be called."""
        use = self._request.tool_use
        if use is None or not use.forced:
            return None
        renderer = await self._services.renderers.of(model)
        return use.constraint(renderer.tool_style.arguments_key)


def _lacks(error: InferenceError, digest: str | None) -> bool:
    """Whether it is this worker that cannot have the adapter: its store is gone or behind, or it serves none at all."""
    return digest is not None and isinstance(error, AdapterNotFound | AdapterInvalid)


def _name_as_asked(error: InferenceError, forced: Constraint | None) -> None:
    """Raises where a worker refuses what stands for a forced call: by the name of what the client sent."""
    if forced is not None and isinstance(error, InvalidRequest) and error.param == "structured_outputs.json":
        raise InvalidRequest(str(error).replace(error.param, forced.field), forced.field) from error
