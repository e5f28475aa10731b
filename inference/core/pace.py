"""How long steps take, learnt from those before."""

from __future__ import annotations

_MEMORY = 0.98
"""Weight of a step against the one after it: about the last fifty count."""


class Pace:
    """Fits ``seconds = base + slope · tokens`` to the last steps, by least squares with fading memory."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._square = self._product = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """One step of so many tokens took so long."""
        self._weight = self._weight * _MEMORY + 1
        self._tokens = self._tokens * _MEMORY + tokens
        self._seconds = self._seconds * _MEMORY + seconds
        self._square = self._square * _MEMORY + tokens * tokens
        self._product = self._product * _MEMORY + tokens * seconds

    def beside(self, decodes: int, stretch: float) -> int | None:
        """Tokens that may join so many decodes if the step is to take at most ``stretch`` times as long as without.

        ``None`` while nothing is known.
        """
        if self._seconds <= 0:
            return None
        mean, mean_seconds = self._tokens / self._weight, self._seconds / self._weight
        spread = self._square / self._weight - mean * mean
        slope = (self._product / self._weight - mean * mean_seconds) / spread if spread > 1.0 else 0.0
        if slope <= 0:  # steps of one size: all of the time counts as theirs
            slope = mean_seconds / mean
        alone = max(0.0, mean_seconds + slope * (decodes - mean))
        return int((stretch - 1) * alone / slope)
