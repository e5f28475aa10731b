"""What the scheduler hands to a runner for one step, and what comes back.

The scheduler is pure Python and never imports torch; a runner is anything that satisfies :class:`Runner`, so that a
fake one can drive the scheduler through millions of steps in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from inference.protocol import SamplingParams, TokenLogprob

BASE_SLOT = -1
"""The slot of a row without an adapter."""
UNKNOWN = -1
"""In place of a token that the step before is still sampling."""


class Mask(Protocol):
    """Which tokens may be chosen next; may still be in the making while the device runs."""

    def take(self, seconds: float) -> bytes | None:
        """One bit a token, least significant first, in 32-bit little-endian words, with at least one of them set.

        ``None`` if it is not there within ``seconds``: the row is not sampled from, and asked for again later.
        """
        ...


@dataclass(slots=True)
class Row:
    """One sequence's part of one step.

    :param tokens: ids whose KV is computed now: a chunk of the prompt, or the one token sampled last.
    :param start: position of ``tokens[0]``, which is also how many positions of this sequence already have KV.
    :param block_table: physical block of each logical block, long enough for ``start + len(tokens)`` positions.
    :param slot: adapter slot on the device, or :data:`BASE_SLOT`.
    :param params: how to sample after the last of ``tokens``; ``None`` in the middle of a prompt.
    :param output: tokens generated so far (penalties; ``len(output)`` numbers the random draw). Not to be mutated.
    :param prompt: the prompt's ids (repetition penalty). Not to be mutated.
    :param seed: the request's random seed, always set when ``params`` is.
    :param draft: how many of the last ``tokens`` are guesses: sample after the last known token and after each guess
        that turned out right. 0 with a ``mask``.
    :param mask: tokens that may be chosen, joined just before sampling; ``None``: all.
    :param prompt_logprobs: report the log-probability of the prompt's token after each of ``tokens``, with this many of
        the most likely beside it.
    :param follows: the last of ``tokens``, and of ``output``, is :data:`UNKNOWN`: it is what this row of the step
        launched before gets. Of ``output`` only the length may be used then.
    """

    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    slot: int = BASE_SLOT
    params: SamplingParams | None = None
    output: Sequence[int] = ()
    prompt: Sequence[int] = ()
    seed: int = 0
    draft: int = 0
    mask: Mask | None = None
    prompt_logprobs: int | None = None
    follows: int | None = None


@dataclass(slots=True)
class Sampled:
    """What a step found out for one row.

    :param tokens: chosen tokens, in order: none in the middle of a prompt or when the row's mask was late, more than
        one after right guesses.
    :param logprobs: of ``tokens``, when ``params.logprobs`` asks for them.
    :param prompt_logprobs: of the prompt's tokens at positions ``start + 1 …``, as far as the prompt goes.
    :param broken: what the model computed for it are no numbers: nothing can follow.
    """

    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    broken: bool = False


class Launched(Protocol):
    """A step on its way."""

    def results(self) -> list[Sampled | None]:
        """Waits for the step; a result for each row that has ``params`` or ``prompt_logprobs``. To be called once.

        Raises ``InferenceError`` only when the device itself fails: then the whole engine is unusable.
        """
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """A :class:`Launched` that has come to its end."""

    found: list[Sampled | None]

    def results(self) -> list[Sampled | None]:
        return self.found


class Runner(Protocol):
    """Computes steps on one device. Not thread-safe: only the core's loop calls it.

    The runner owns the KV pool ``[num_blocks, block_size, kv_heads, head_dim]`` per layer and the adapter slots; which
    block and which slot holds what is the caller's business.
    """

    block_size: int
    num_blocks: int
    num_slots: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    kv_dtype: str
    ahead: bool
    """Whether :meth:`launch` returns before the step is done, and takes rows that follow one that is not."""

    def launch(self, rows: Sequence[Row]) -> Launched:
        """Compute KV for every row's tokens, and sample. What happens afterwards happens on the device afterwards.

        Rows may change once it has returned. Raises as :meth:`Launched.results`.
        """
        ...

    def read_adapter(self, directory: Path) -> object:
        """Read and check a PEFT directory into host memory. Thread-safe: called beside a running step.

        What lies in a directory named by a digest has to have that digest. Raises
        :class:`~inference.errors.AdapterInvalid`. The result is only ever passed to :meth:`load_adapter`.
        """
        ...

    def adapter_bytes(self, adapter: object) -> int:
        """Host memory that what :meth:`read_adapter` returned takes."""
        ...

    def load_adapter(self, slot: int, adapter: object) -> None:
        """Put what :meth:`read_adapter` returned into ``slot``, replacing what was there. Between steps only.

        Raises :class:`~inference.errors.Overloaded` where the device has no memory for it, or would have none left for
        steps: whatever of it the slot holds then is to be cleared.
        """
        ...

    def clear_slot(self, slot: int) -> None: ...
