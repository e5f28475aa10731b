"""One request on its way through the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from inference.core.lookup import Lookup
from inference.core.prefix_cache import Chain
from inference.core.step import BASE_SLOT, UNKNOWN
from inference.protocol import FinishReason, SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from inference.constraints.matcher import Matcher


class State(Enum):
    WAITING = "waiting"  # in the queue
    PARKED = "parked"  # its constraint is being compiled; or its adapter is being loaded, or waits for a slot
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request.

    :ivar tokens: the prompt, then everything generated; at the end, what the step in flight generates as
        :data:`~inference.core.step.UNKNOWN`.
    :ivar unknown: how many those are: at most one while steps are laid out. :ivar row: its row in the step in flight.
    :ivar computed: positions that have KV, or will have it when the steps that are launched are done.
    :ivar chain: how far its full blocks are in the prefix cache.
    :ivar slot: adapter slot while pinned, or :data:`BASE_SLOT`.
    :ivar pinned: whether the sequence holds a pin on its adapter's slot.
    :ivar cached_tokens: prompt tokens found in the cache at the first admission.
    :ivar charged: prompt tokens that were cached at the first admission or have been charged to the tenant since.
    :ivar begun: a part of a request that runs already: no full queue refuses it or puts it out.
    :ivar admitted: whether it has ever run; ``preempted``: how often it had to give up its blocks.
    :ivar scores: log-probabilities of the prompt's tokens from the second on, as far as they are known.
    :ivar lookup: what guesses its next tokens, if anything does.
    :ivar matcher: what holds its text to a constraint, if anything does.
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
    begun: bool = False
    arrival: int = 0
    chain: Chain = Chain(b"", None)  # noqa: RUF009 - a tuple
    state: State = State.WAITING
    tokens: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    unknown: int = 0
    row: int | None = None
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = BASE_SLOT
    pinned: bool = False
    cached_tokens: int = 0
    charged: int = 0
    admitted: bool = False
    preempted: int = 0
    scores: list[TokenLogprob] = field(default_factory=list)
    lookup: Lookup | None = None
    matcher: Matcher | None = None
    queued_at: float = 0.0
    waited: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def pending(self) -> int:
        """Tokens that still need KV before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def known(self) -> int:
        """Tokens that are known, the prompt's included."""
        return len(self.tokens) - self.unknown

    @property
    def complete(self) -> bool:
        """Whether the token that is being sampled is its last, whatever it is."""
        return self.unknown > 0 and not self.left

    @property
    def runnable(self) -> bool:
        """Whether a row may be spent on it: a mask that takes long is not waited for."""
        return not self.complete and (self.matcher is None or self.matcher.ready)

    @property
    def foreseeable(self) -> bool:
        """Whether the step after one that samples can be laid out before its token is known."""
        free = self.matcher is None and self.lookup is None
        return free and self.params.prompt_logprobs is None and not self.params.penalises

    @property
    def order(self) -> tuple[int, int]:
        """Smaller is served first and preempted last."""
        return (self.priority, self.arrival)

    @property
    def left(self) -> int:
        """Tokens that it may still generate."""
        return self.params.max_tokens - len(self.output)

    @property
    def unscored(self) -> bool:
        """Whether log-probabilities of the prompt are asked for and not all known."""
        return self.params.prompt_logprobs is not None and len(self.scores) < len(self.prompt) - 1

    @property
    def reusable(self) -> list[int]:
        """The tokens whose blocks may come from the cache: what is not scored yet has to be computed."""
        return self.tokens[: len(self.scores) + 1] if self.unscored else self.tokens

    def score(self, start: int, scores: list[TokenLogprob]) -> None:
        """Log-probabilities of the tokens at ``start + 1 …``; those known from before a preemption are not needed."""
        known = len(self.scores) - start
        assert known >= 0, "a part of the prompt was not scored"
        self.scores += scores[known:]

    def expect(self) -> None:
        """A token is being sampled."""
        self.tokens.append(UNKNOWN)
        self.output.append(UNKNOWN)
        self.unknown += 1

    def gain(self, token: int, ends: frozenset[int], max_model_len: int) -> FinishReason | None:
        """One more generated token, the first of those expected; why it is the last, if it is."""
        if not self.unknown:
            self.expect()
        self.tokens[self.known] = self.output[self.known - len(self.prompt)] = token
        self.unknown -= 1
        # A constraint lets an unwanted end token through only when nothing else could follow.
        ends_text = token in ends and (not self.params.ignore_eos or self.matcher is not None)
        if ends_text or token in self.params.stop_token_ids:
            return "stop"
        if self.known - len(self.prompt) >= self.params.max_tokens or self.known >= max_model_len:
            return "length"
        if self.matcher is not None:
            self.matcher.advance(token)
        return None
