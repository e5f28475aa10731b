"""One choice's tokens become text that may be given out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.front.stop_text import StopText
from inference.prompt import Detokenizer, PromptRenderer
from inference.protocol import TokenLogprob


@dataclass(frozen=True, slots=True)
class Piece:
    """What some tokens brought.

    :param tokens: those that count: none after the one that completed a stop string.
    :param logprobs: those whose text is given out now, ``None`` where nobody asked; ``offsets`` says where each begins.
    :param stopped: a stop string was reached; nothing may follow.
    """

    text: str
    tokens: Sequence[int]
    stopped: bool = False
    logprobs: tuple[TokenLogprob, ...] | None = None
    offsets: tuple[int, ...] | None = None


class AnswerText:
    """Detokenises, looks for stop strings, and lets log-probabilities go with the text that they belong to.

    :param stops: strings that end the text.
    :param min_tokens: no stop string ends it with fewer tokens, nor with just as many.
    :param logprobs: whether each token comes with one.
    """

    def __init__(
        self, renderer: PromptRenderer, stops: Sequence[str], *, min_tokens: int = 0, logprobs: bool = False
    ) -> None:
        self._detokenizer = Detokenizer(renderer)
        self._stop_text = StopText(stops) if stops else None
        self._logprobs = logprobs
        self._tokens = renderer.token_bytes
        self._must = min_tokens
        self._length = 0  # characters so far, held back ones included
        self._given = 0
        self._held: list[tuple[int, TokenLogprob]] = []

    def push(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], *, last: bool) -> Piece:
        """:param last: no more tokens come."""
        if self._stop_text is None and not self._logprobs:
            text = self._detokenizer.push(tokens)
            return Piece(text + self._detokenizer.flush() if last else text, tokens)
        pieces: list[str] = []
        for count, token in enumerate(tokens, start=1):
            known = self._detokenizer.push([token])
            self._must -= 1
            if self._logprobs:
                self._held.append((self._length + self._tokens.begins(token, known), logprobs[count - 1]))
            piece, stopped = self._until_stop(known)
            pieces.append(piece)
            if stopped:
                return self._piece(pieces, tokens[:count], stopped=True)
        if last:
            # At a token that ends the text nothing more can complete a stop string but what was held back.
            piece, stopped = self._until_stop(self._detokenizer.flush())
            pieces.append(piece)
            if not stopped and self._stop_text is not None:
                pieces.append(self._stop_text.flush())
            return self._piece(pieces, tokens, stopped=stopped, last=not stopped)
        return self._piece(pieces, tokens)

    def _until_stop(self, text: str) -> tuple[str, bool]:
        self._length += len(text)
        return (text, False) if self._stop_text is None else self._stop_text.push(text, may_end=self._must < 0)

    def _piece(self, pieces: list[str], tokens: Sequence[int], *, stopped: bool = False, last: bool = False) -> Piece:
        text = "".join(pieces)
        self._given += len(text)
        if not self._logprobs:
            return Piece(text, tokens, stopped)
        # A token goes with its first character; one without any, with what follows it. Behind a stop string: never.
        ready = len(self._held)
        if self._stop_text is not None and not last:
            ready = next((at for at, (offset, _) in enumerate(self._held) if offset >= self._given), ready)
        gone, self._held = self._held[:ready], self._held[ready:]
        return Piece(text, tokens, stopped, tuple(entry for _, entry in gone), tuple(offset for offset, _ in gone))
