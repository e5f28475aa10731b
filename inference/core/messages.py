"""What front and core say to each other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from inference.core.codec import Codec


@dataclass(frozen=True, slots=True)
class Submit:
    """Front → core: run this request. ``params`` is :meth:`SamplingParams.wire`.

    :param begun: it is a part of one that runs already, whose client may have tokens: no full queue refuses it.
    """

    request_id: str
    prompt: list[int]
    params: dict[str, Any]
    seed: int
    tenant: str
    namespace: str
    adapter: str | None
    priority: int
    weight: int
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Front → core: nobody wants the rest. Not answered."""

    request_id: str


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Front → core: make the adapter resident, reading it from ``path`` if that is not its place in the store."""

    call: int
    digest: str
    path: str | None


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    call: int
    digest: str


@dataclass(frozen=True, slots=True)
class DeclarePrefix:
    """Front → core: the full blocks of ``tokens`` are everybody's. Answered."""

    call: int
    name: str
    adapter: str | None
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class WithdrawPrefix:
    """Front → core: they are not any more. Answered."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Front → core: compute one step now and answer."""

    call: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Core → front, once: what it can do."""

    block_size: int
    num_blocks: int
    num_slots: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: list[int]
    kv_dtype: str


ADAPTER_LOAD_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Stats:
    """State after a step; the counters only ever grow.

    :param adapter_loads: how many took up to each of :data:`ADAPTER_LOAD_SECONDS` (and no bound below), then how many
        took longer; ``adapter_load_seconds`` altogether.
    """

    running: int
    waiting: int
    blocks_in_use: int
    blocks_cached: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    steps: int
    resident: list[str]
    running_adapters: list[str]
    waiting_adapters: list[str]
    adapter_loads: list[int]
    adapter_load_seconds: float
    adapter_failures: int
    adapter_evictions: int
    host_adapters: int = 0
    host_bytes: int = 0
    host_hits: int = 0
    host_reads: int = 0
    guessed: int = 0
    guessed_right: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Core → front, after every step and whenever the core falls idle.

    :param gained: ``[request id, tokens, finish reason or None, cached prompt tokens]``, and for a request that asked
        for them ``[…, logprobs or None, prompt logprobs or None]``, each :meth:`TokenLogprob.wire`
    :param failed: ``[request id, error name, message, param or None, seconds to wait before another try or None]``
    :param started: ``[request id, seconds it waited]`` of those whose first tokens this step computed
    """

    gained: list[list[Any]]
    failed: list[list[Any]]
    started: list[list[Any]]
    stats: list[Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Core → front: the answer to a call; ``error`` is the name of an :mod:`inference.errors` class."""

    call: int
    error: str | None = None
    message: str = ""
    param: str | None = None


Message = Submit | Abort | LoadAdapter | UnloadAdapter | DeclarePrefix | WithdrawPrefix | Probe | Ready | Step | Reply

_CODEC: Codec[Message] = Codec(
    Submit, Abort, LoadAdapter, UnloadAdapter, DeclarePrefix, WithdrawPrefix, Probe, Ready, Step, Reply
)
encode, decode, read = _CODEC.encode, _CODEC.decode, _CODEC.read

_STATS = tuple(field.name for field in fields(Stats))


def values(stats: Stats) -> list[Any]:
    """Its fields in order, as :class:`Step` carries them."""
    return [getattr(stats, name) for name in _STATS]
