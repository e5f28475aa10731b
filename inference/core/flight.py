"""The step that the device computes while the next one is laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inference.core.batch import Batch
from inference.core.step import Done, Launched, Runner, Sampled


class Flight:
    """Keeps one step on its way where the runner and the step allow it; otherwise each is waited for.

    A step is foreseeable where no row's next token depends on the host knowing the one before: no constraint, no
    penalty, no guesses. Nearly all are. Then the device need not wait for the host between two steps: the next is
    launched with the tokens still to be sampled, which its rows take from the device. A sequence that turns out to have
    ended has computed one position for nothing, in a block of its own.

    :param foresee: :meth:`~inference.core.scheduler.Scheduler.foresee`.
    """

    def __init__(self, runner: Runner, foresee: Callable[[Batch], None]) -> None:
        self._runner, self._foresee = runner, foresee
        self._step: tuple[Batch, Launched] | None = None

    def __bool__(self) -> bool:
        """Whether a step is on its way."""
        return self._step is not None

    def advance(self, batch: Batch) -> Iterator[tuple[Batch, list[Sampled | None]]]:
        """Launch a batch, which may be empty. The steps that are over then, in order: the one before, and, where the
        next cannot be laid out without its results, this one.

        Raises :class:`~inference.errors.InferenceError` when the device fails.
        """
        before, self._step = self._step, None
        launched = self._runner.launch(batch.rows) if batch.rows else Done([])
        stays = self._runner.ahead and bool(batch.rows) and batch.foreseeable
        if stays:
            self._foresee(batch)
            self._step = batch, launched
        if before is not None:
            yield before[0], before[1].results()
        if not stays:
            yield batch, launched.results()
