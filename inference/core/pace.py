"""How long steps with prompts take, learnt from those before."""

from __future__ import annotations

import math

_MEMORY = 0.98
"""Weight of a step against the one after it: about the last fifty count."""


class Pace:
    """Fits ``seconds = base + slope · tokens`` to the last steps with prompts, by least squares with fading memory.

    Steps that only decode are left out: a GPU replays them, and any prompt token costs a jump on top. In a line through
    both kinds the jump would look like the price of the few tokens between them; so it is part of ``base``.
    """

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._square = self._product = self._seconds_square = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """One step of so many tokens, prompts' among them, took so long."""
        self._weight = self._weight * _MEMORY + 1
        self._tokens = self._tokens * _MEMORY + tokens
        self._seconds = self._seconds * _MEMORY + seconds
        self._square = self._square * _MEMORY + tokens * tokens
        self._product = self._product * _MEMORY + tokens * seconds
        self._seconds_square = self._seconds_square * _MEMORY + seconds * seconds

    def beside(self, decodes: int, stretch: float) -> int | None:
        """Prompt tokens that may join so many decodes if the step is to take at most ``stretch`` times as long as with
        hardly any of them. Where there is no jump, that is as long as the decodes alone take.

        ``None``: any number, because nothing is known or the last steps do not show that tokens cost anything.
        """
        if self._seconds <= 0:
            return None
        mean, mean_seconds = self._tokens / self._weight, self._seconds / self._weight
        spread = self._square / self._weight - mean * mean
        if spread <= 1.0:  # steps of one size: all of the time counts as theirs
            return int((stretch - 1) * decodes)
        slope = (self._product / self._weight - mean * mean_seconds) / spread
        least = slope - self._error(slope, spread, mean_seconds)
        if least <= 0:
            return None
        base = max(0.0, mean_seconds + slope * (decodes - mean))
        return int((stretch - 1) * base / least)

    def _error(self, slope: float, spread: float, mean_seconds: float) -> float:
        """The slope's standard error, by what scatters about the line."""
        scatter = self._seconds_square / self._weight - mean_seconds * mean_seconds - slope * slope * spread
        return math.sqrt(max(0.0, scatter) / (spread * self._weight))
