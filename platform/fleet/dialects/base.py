from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fleet.dialects.report import Report
from inference.errors import InvalidRequest
from inference.protocol import Delta


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of server can do; the router and the gateway ask here instead of asking its name.

    :param token_ids: takes prompts as token ids and returns the ids it generated.
    :param dynamic_load: loads an adapter it does not know yet when a request names it.
    :param cache_salt: isolates cached prompts by a salt or a signed namespace.
    :param residency: tells which adapters lie on the device.
    :param public_prefixes: computes prefixes that were declared public once for all tenants.
    :param refuses: sampling fields (vLLM's names) that it cannot honour: such as ``n``, ``logprobs``,
        ``prompt_logprobs``. A request that has one is refused by that name, never sent without it.
    """

    token_ids: bool
    dynamic_load: bool
    cache_salt: bool
    residency: bool
    public_prefixes: bool = False
    refuses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Probe:
    """How a worker was at one moment.

    :param running: requests being computed.
    :param waiting: requests in its queue.
    :param kv_usage: share of KV blocks in use, 0 to 1.
    :param resident: adapter digests on the device.
    :param slots: adapters that fit on the device at a time; ``None``: it does not say.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    resident: frozenset[str] = frozenset()
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One request as the worker gets it.

    :param base: served name of the base model.
    :param digest: content digest of the adapter, or ``None``.
    :param sampling: sampling fields under vLLM's names; only what differs from the defaults has to be there.
    :param grant: signed grant; a secret, so it stays out of ``repr``.
    """

    base: str
    digest: str | None
    prompt: Sequence[int]
    sampling: dict[str, Any]
    grant: str = field(repr=False)


class Dialect(ABC):
    """One upstream server. Safe for any number of concurrent calls on one event loop."""

    capabilities: ClassVar[Capabilities]

    @abstractmethod
    async def check(self) -> str | None:
        """The fingerprint of the model it serves, ``None`` where it cannot say.

        Raises :class:`~inference.errors.InferenceError` when it is not fit to serve.
        """

    @abstractmethod
    async def probe(self) -> Probe:
        """Raises :class:`~inference.errors.InferenceError` when it cannot be reached."""

    async def report(self) -> Report:
        """All that it says of itself, for people. Raises as :meth:`probe`."""
        probe = await self.probe()
        return Report(probe.running, probe.waiting, probe.kv_usage, resident=tuple(sorted(probe.resident)))

    async def load(self, digest: str) -> None:
        """Make an adapter resident, from where the server keeps adapters; nothing happens if it is.

        Raises :class:`~inference.errors.InferenceError`: ``AdapterNotFound`` where it is not there,
        ``InvalidRequest`` where the server takes none in this way.
        """
        raise InvalidRequest("This kind of server cannot be told to load an adapter")

    async def unload(self, digest: str) -> None:
        """Take an adapter out, after the requests that use it; nothing happens if it is not there."""
        raise InvalidRequest("This kind of server cannot be told to unload an adapter")

    async def public_prefixes(self) -> set[str]:
        """The ids (:func:`~inference.prefix_id.prefix_id`) of what is declared there. Raises as :meth:`probe`."""
        return set()

    async def declare_prefix(self, digest: str | None, tokens: Sequence[int]) -> None:
        """Let all tenants share a prefix; nothing happens if they do. :param digest: of the adapter that it is for.

        Raises :class:`~inference.errors.InferenceError`: ``InvalidRequest`` where it is too short or too long.
        """
        raise InvalidRequest("This kind of server knows no public prefixes")

    async def withdraw_prefix(self, prefix: str) -> None:
        """Share it no longer; nothing happens if it is not declared."""
        raise InvalidRequest("This kind of server knows no public prefixes")

    @abstractmethod
    def generate(self, job: Job) -> AsyncGenerator[Delta, None]:
        """Deltas of one request; the last one carries usage.

        Closing the generator aborts the request at the worker. Raises subclasses of
        :class:`~inference.errors.InferenceError`, at the first ``__anext__`` when the worker refuses.
        """
