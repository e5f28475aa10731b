"""How far one request's text has come in its language, and what may come next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from llguidance import LLMatcher

from inference.constraints.grammar import grammar_of
from inference.constraints.vocabulary import Vocabulary
from inference.errors import InferenceError, InvalidRequest
from inference.protocol import Constraint, SamplingParams

SLOW_SECONDS = 0.003
"""A matcher whose mask once cost more CPU time than this is no longer waited for before sampling."""
MAX_MESSAGE = 300
_STOP_REASONS = {
    "NoExtension": "no text conforms to it",
    "NoExtensionBias": "no text conforms to it",
    "LexerTooComplex": "the language is too complex to follow",
    "ParserTooComplex": "the language is too complex to follow",
    "InternalError": "the language cannot be followed",
}
"""llguidance's names for how a text ended, where it says no more than the name."""


class Matcher:
    """Compiled once, then advanced by one token at a time, each time in somebody else's thread than the loop's.

    Its state follows the tokens that the request has been given, so that it outlives a preemption. Where the language
    and the request disagree about the end, the language wins: ``min_tokens`` and ``ignore_eos`` keep end tokens out
    only while something else may come, and an end token always ends the text.

    :ivar error: why it cannot go on; final.
    :ivar slow: its masks are computed beside the others' and its rows wait until they are there.
    """

    def __init__(self, constraint: Constraint, params: SamplingParams, push: Callable[[Matcher], None]) -> None:
        """:param push: has :meth:`step` called by another thread."""
        self.constraint = constraint
        self._push = push
        self.error: InferenceError | None = None
        self.slow = False
        self.closed = False
        self._params = params
        self._eos = self._ends = 0
        self._state: LLMatcher | None = None
        self._token: int | None = None
        self._count = 0
        self._bits: bytes | None = None
        self._done = threading.Event()

    def compile(self, vocabulary: Vocabulary) -> None:
        """Makes the first mask too. Raises :class:`InvalidRequest` naming the constraint's field."""
        state = vocabulary.matcher(grammar_of(self.constraint))
        if state.is_error():
            raise InvalidRequest(*refusal(self.constraint, state.get_error()))
        self._eos = _bits_of(vocabulary.eos_token_ids)
        self._ends = self._eos | _bits_of(self._params.stop_token_ids)
        self._state = state
        self.step()
        if self.error is not None:
            raise self.error
        self.slow = False  # the first mask builds what the others use

    @property
    def ready(self) -> bool:
        """Whether the next mask is worth a row: it is there, or will be by the time it is needed."""
        return not self.slow or self._done.is_set()

    def advance(self, token: int) -> None:
        """The request was given ``token``: its next mask is computed from now on."""
        self._done.clear()
        self._bits, self._token = None, token
        self._count += 1
        self._push(self)

    def step(self) -> None:
        """Take in the token and compute the mask; what goes wrong becomes :attr:`error`."""
        if self.closed or self._state is None:
            return
        state, began = self._state, time.thread_time()
        if self._token is not None:
            state.consume_token(self._token)
        bits = state.compute_bitmask()
        if state.is_error():
            self.fail(state.get_error())
            return
        self.slow = self.slow or time.thread_time() - began > SLOW_SECONDS
        self._bits = self._without_ends(bits)
        self._done.set()

    def take(self, seconds: float) -> bytes | None:
        """The mask, one bit a token, least significant first; ``None`` if it is not there within ``seconds``."""
        self._done.wait(seconds)
        return self._bits

    def fail(self, message: str) -> None:
        """It goes no further."""
        self.error = InvalidRequest(*refusal(self.constraint, message))
        self._done.set()

    def close(self) -> None:
        """The request has ended; memory is freed as soon as no thread is at work on it."""
        self.closed = True
        self._state = None

    def _without_ends(self, bits: bytes) -> bytes:
        """End tokens are no choice while the request does not want to end and the language can go on."""
        unwanted = self._ends if self._count < self._params.min_tokens else 0
        if self._params.ignore_eos:
            unwanted |= self._eos
        if not unwanted:
            return bits
        left = int.from_bytes(bits, "little") & ~unwanted
        return left.to_bytes(len(bits), "little") if left else bits


def refusal(constraint: Constraint, message: str) -> tuple[str, str]:
    """What :class:`InvalidRequest` is raised with: llguidance's own words, without its pictures of the source."""
    lines = message.replace("<non-verbose/>", "").strip().splitlines()
    reason = " ".join([*lines[:1], *(line for line in lines[1:] if line.startswith("error:"))])[:MAX_MESSAGE]
    reason = _STOP_REASONS.get(reason, reason)
    return f"{constraint.field}: {reason or 'not accepted'}", constraint.field


def _bits_of(tokens: frozenset[int] | tuple[int, ...]) -> int:
    return sum(1 << token for token in set(tokens))
