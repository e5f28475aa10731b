"""One request on its way through the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from inference.core.step import BASE_SLOT
from inference.protocol import SamplingParams


class State(Enum):
    WAITING = "waiting"  # in the queue
    PARKED = "parked"  # its adapter is being loaded, or waits for a slot
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request.

    :ivar tokens: the prompt, then everything generated.
    :ivar computed: positions that have KV.
    :ivar keys: prefix-cache keys of the full blocks so far.
    :ivar slot: adapter slot while pinned, or :data:`BASE_SLOT`.
    :ivar pinned: whether the sequence holds a pin on its adapter's slot.
    :ivar cached_tokens: prompt tokens found in the cache at the first admission.
    :ivar charged: prompt tokens charged to the tenant at the first admission.
    :ivar admitted: whether it has ever run.
    :ivar queued_at: when it came, by the scheduler's clock; ``waited``: seconds from then until it first ran.
    """

    request_id: str
    prompt: list[int]
    params: SamplingParams
    seed: int
    tenant: str
    namespace: str
    adapter: str | None
    priority: int = 0
    weight: int = 1
    arrival: int = 0
    root: bytes = b""
    state: State = State.WAITING
    tokens: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    slot: int = BASE_SLOT
    pinned: bool = False
    cached_tokens: int = 0
    charged: int = 0
    admitted: bool = False
    queued_at: float = 0.0
    waited: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def pending(self) -> int:
        """Tokens that still need KV before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def order(self) -> tuple[int, int]:
        """Smaller is served first and preempted last."""
        return (self.priority, self.arrival)
