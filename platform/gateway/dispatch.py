"""An admitted request on its way to the best worker, and to the next where that fails before its first token."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fleet.dialects.base import Job
from gateway.schemas import AnyRequest
from gateway.services import Services
from inference.errors import EngineDead, InvalidRequest, Overloaded, WorkerUnavailable
from inference.protocol import Constraint, Delta
from tenants import grants
from tenants.access import Access, ServedModel
from tenants.admission import Admitted

logger = logging.getLogger(__name__)

MOST_WORKERS_TRIED = 2


class Dispatch:
    """Of one request.

    :param name: the request's, for the log.
    :ivar begun: a worker may have begun to compute it.
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
        """Raises what workers raise; of the last one tried where several failed."""
        forced = await self._forced_call(model)
        sampling = self._sampling(admitted, forced)
        job = Job(model.base, model.adapter_digest, prompt, sampling, grants.signed_now(admitted.grant))
        candidates = await self._services.router.candidates(
            fingerprint=model.fingerprint,
            digest=model.adapter_digest,
            namespace=str(self._access.tenant_id),
            prompt=prompt,
        )
        able = [replica for replica in candidates if replica.refused(job) is None]
        tried = (able or candidates)[:MOST_WORKERS_TRIED]
        for replica in tried:
            answered = False
            try:
                self.begun = True
                if replica is not tried[0]:
                    job = dataclasses.replace(job, grant=grants.signed_now(admitted.grant))
                async with aclosing(replica.generate(job)) as deltas:
                    async for delta in deltas:
                        answered = True
                        yield delta
                return
            except InvalidRequest as error:
                if forced is None or error.param != "structured_outputs.json":
                    raise
                raise InvalidRequest(str(error).replace(error.param, forced.field), forced.field) from error
            except (WorkerUnavailable, EngineDead, Overloaded) as error:
                lost = not answered and not isinstance(error, Overloaded)
                if lost and replica is tried[-1] and len(tried) <= MOST_WORKERS_TRIED:
                    tried += (await self._services.router.newcomers(model.fingerprint, candidates))[:1]
                if answered or replica is tried[-1]:
                    raise
                logger.warning("request %s: worker %s failed, trying another: %s", self._name, replica.name, error)

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
