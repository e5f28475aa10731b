"""One step's rows, and what they brought."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from inference.core.sequence import Sequence
from inference.core.step import Row
from inference.errors import InferenceError
from inference.protocol import FinishReason, TokenLogprob


@dataclass(slots=True)
class Batch:
    """Row ``i`` belongs to sequence ``i``.

    :ivar started: those that never ran before.
    :ivar began: when its layout did, by the scheduler's clock.
    :ivar in_flight: what it computes has been accounted for before its results are known.
    """

    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    began: float = 0.0
    in_flight: bool = False

    @property
    def tokens(self) -> int:
        """Positions that the step computes."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def foreseeable(self) -> bool:
        """Whether the step after it can be laid out before its results are known."""
        pairs = zip(self.rows, self.sequences, strict=True)
        return all(sequence.foreseeable for row, sequence in pairs if row.params or row.prompt_logprobs is not None)

    def append(self, sequence: Sequence, length: int) -> int:
        """The sequence's next ``length`` tokens, sampled from if they are its last; returns ``length``."""
        start, end = sequence.computed, sequence.computed + length
        samples = end == len(sequence.tokens)
        self.sequences.append(sequence)
        self.rows.append(
            Row(
                sequence.tokens[start:end],
                start,
                sequence.blocks,
                sequence.slot,
                sequence.params if samples else None,
                sequence.output,
                sequence.prompt,
                sequence.seed,
                mask=sequence.matcher if samples else None,
                prompt_logprobs=sequence.params.prompt_logprobs if sequence.unscored else None,
                follows=sequence.row if samples and sequence.unknown else None,
            )
        )
        return length


@dataclass(frozen=True, slots=True)
class Progress:
    """What a request gained: tokens, an end, or an error instead.

    :ivar logprobs: of ``tokens``; :ivar prompt_logprobs: of the prompt, once, with the first token.
    """

    sequence: Sequence
    tokens: Seq[int] = ()
    finish: FinishReason | None = None
    error: InferenceError | None = None
    logprobs: Seq[TokenLogprob] | None = None
    prompt_logprobs: Seq[TokenLogprob] | None = None
