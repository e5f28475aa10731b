"""A step that the device computes, and what is read of it when it is over."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from inference.core.step import Sampled
from inference.draws import Draws
from inference.errors import InferenceError
from inference.logprobs import Logprobs
from inference.protocol import TokenLogprob
from inference.readback import Readback


@dataclass(slots=True)
class LaunchedStep:
    """See :class:`inference.core.step.Launched`.

    :param order: of each of the step's rows its index among the caller's.
    :param scores: of prompts, by row and in parts, see :attr:`inference.core.step.Sampled.prompt_logprobs`.
    :param chosen: ``[2, n]`` int64: a token of each draw, if there are any, and whether its logit is a finite number.
    :param logprobs: of ``draws.tops``, in their order.
    :param late: draws that come to nothing.
    """

    draws: Draws
    order: Sequence[int]
    scores: Mapping[int, Sequence[Logprobs]]
    chosen: Readback | None = None
    logprobs: Logprobs | None = None
    late: Collection[int] = ()

    def results(self) -> list[Sampled | None]:
        try:
            chosen, finite = ([], []) if self.chosen is None else self.chosen.read().tolist()
            reported = [] if self.logprobs is None else self.logprobs.read()
            prompts = {row: [entry for part in parts for entry in part.read()] for row, parts in self.scores.items()}
        except RuntimeError as error:
            raise InferenceError(f"the device failed in a step: {error}") from error
        logprobs = dict(zip(self.draws.tops, reported, strict=True))
        broken = {draw for draw, is_finite in enumerate(finite) if not is_finite}
        broken |= {draw for draw, entry in logprobs.items() if _is_broken(entry)}
        found = self.draws.outcome(chosen, logprobs, late=self.late, broken=broken)
        results: list[Sampled | None] = [None] * len(self.order)
        for row, scores in prompts.items():
            scored = found[row] or Sampled([])
            scored.prompt_logprobs = scores
            scored.broken |= any(map(_is_broken, scores))
            found[row] = scored
        for index, result in zip(self.order, found, strict=True):
            results[index] = result
        return results


def _is_broken(entry: TokenLogprob) -> bool:
    return not math.isfinite(entry.logprob)
