"""How a step's tokens are divided between the running sequences."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from inference.core.batch import Batch
from inference.core.blocks import BlockPool
from inference.core.fairness import Fairness
from inference.core.limits import Limits
from inference.core.pace import Pace
from inference.core.sequence import Sequence

STRETCH = 1.5
"""How much longer than with hardly a prompt token a step may take, while tenants compete, for prompts of the heavier.

Not than with its decodes alone: that differs where decodes are replayed from graphs and any prompt token makes the step
slower by a jump. Prompts must come on, so the jump is paid; paid for few tokens at a time it would be paid more often,
and who decodes beside them would wait longer altogether."""
LEAST_PROMPT = 16
"""Prompt tokens that a step takes on in any case."""


class Portions:
    """Fills batches: every decode gets its token, then prompts by what their tenants used lately, then guesses.

    While tenants compete, the one that used least lately has the whole token budget for its prompts; what the others
    add may stretch the step by :data:`STRETCH`. So nobody's first token waits behind a heavy tenant's prompts.

    :ivar guessed: tokens guessed so far; ``right``: those that were.
    """

    def __init__(self, limits: Limits, fairness: Fairness, pool: BlockPool, block_size: int) -> None:
        self.guessed = self.right = 0
        self._limits, self._fairness = limits, fairness
        self._pool, self._block_size = pool, block_size
        self._pace = Pace()

    def fill(self, running: Seq[Sequence]) -> Batch:
        """The next step's rows; every sequence has blocks for what it computes."""
        batch = Batch()
        for sequence in running:
            if sequence.pending == 1 and sequence.runnable:
                batch.append(sequence, 1)
        leader = self._fairness.leader()
        budget = self._limits.token_budget - len(batch.rows)
        paced = budget if leader is None else self._beside(len(batch.rows))
        used = self._prompts(batch, running, leader, budget, paced)
        if self._limits.speculate_tokens:
            self._guess(batch, min(budget, paced) - used)
        return batch

    def learn(self, batch: Batch, seconds: float) -> None:
        """The batch's step took so long. One that only decodes may be of another kind: nothing is learnt from it."""
        tokens = batch.tokens
        if tokens > len(batch.rows):
            self._pace.learn(tokens, seconds)

    def _beside(self, decodes: int) -> int:
        """Prompt tokens that fit beside so many decodes without making the step much longer."""
        tokens = self._pace.beside(decodes, STRETCH)
        return self._limits.token_budget if tokens is None else max(tokens, LEAST_PROMPT)

    def _prompts(self, batch: Batch, running: Seq[Sequence], leader: str | None, budget: int, paced: int) -> int:
        """:returns: tokens used. Priorities below 0 are urgent: they are not held back."""
        prompts = [sequence for sequence in running if sequence.pending > 1 and sequence.runnable]
        prompts.sort(key=lambda each: (each.priority, self._fairness.recent(each.tenant), each.arrival))
        used = 0
        for sequence in prompts:
            leads = leader is None or (sequence.tenant == leader and sequence.priority == prompts[0].priority)
            allowed = budget if leads or sequence.priority < 0 else min(budget, paced)
            if allowed > used:
                used += batch.append(sequence, min(sequence.pending, allowed - used))
        return used

    def _guess(self, batch: Batch, budget: int) -> None:
        """Adds guesses to rows that decode. They take no block that holds something."""
        for sequence, row in zip(batch.sequences, batch.rows, strict=True):
            if row.params is None or len(row.tokens) > 1 or sequence.lookup is None:
                continue
            # The last token that may come needs no guess: it follows from the one before.
            limit = min(budget, sequence.left - 1, self._limits.max_model_len - len(sequence.tokens) - 1)
            guesses = sequence.lookup.guess(sequence.tokens, limit)
            missing = -(-(len(sequence.tokens) + len(guesses)) // self._block_size) - len(sequence.blocks)
            if (extra := min(missing, self._pool.free)) > 0:
                sequence.blocks += self._pool.allocate(sequence.namespace, extra, sequence.weight)
            del guesses[len(sequence.blocks) * self._block_size - len(sequence.tokens) :]
            row.tokens, row.draft = [*row.tokens, *guesses], len(guesses)
            budget -= len(guesses)

    def outcome(self, sequence: Sequence, guessed: int, right: int) -> None:
        """How many of a sequence's guesses were right."""
        if guessed and sequence.lookup is not None:
            self.guessed += guessed
            self.right += right
            sequence.lookup.learn(guessed, right)
