"""Log-probabilities as OpenAI's and vLLM's answers show them. The worker's front and the gateway write the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.logprob_reader import BY_ID
from inference.prompt import Detokenizer, PromptRenderer
from inference.protocol import Delta, TokenLogprob

LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a token that is next to impossible; JSON has no infinity."""


class LogprobShapes:
    """:param as_ids: completions name tokens ``token_id:17`` instead of by their text (vLLM's
    ``return_tokens_as_token_ids``): exact where two tokens have the same text or none.
    """

    def __init__(self, renderer: PromptRenderer, *, as_ids: bool = False) -> None:
        self._tokens = renderer.token_bytes
        self._ends = renderer.eos_token_ids
        self._as_ids = as_ids

    def chat(self, delta: Delta, ends: Sequence[int] = ()) -> dict[str, Any] | None:
        """A chat's ``logprobs``, ``None`` where there is nothing to say.

        The token that ended the answer is no part of its content: one of the model's own, or of ``ends``.
        """
        entries = delta.logprobs or ()
        if delta.finish_reason == "stop" and entries and entries[-1].token in {*self._ends, *ends}:
            entries = entries[:-1]
        if not entries:
            return None
        return {"content": [self._content(entry) for entry in entries], "refusal": None}

    def completion(self, delta: Delta, *, shift: int = 0, echo: Echo | None = None) -> dict[str, Any] | None:
        """A completion's ``logprobs``: one entry a token, the one that ended the text included.

        ``top_logprobs`` hold the chosen token beside the most likely ones, as OpenAI's and vLLM's do.

        :param shift: characters of the answer before the completion itself: those of the echoed prompt.
        :param echo: the prompt, with the first delta after it.
        """
        if delta.logprobs is None:
            return None
        entries: list[TokenLogprob | None] = list(delta.logprobs)
        tokens = [entry.token for entry in delta.logprobs]
        offsets = [offset + shift for offset in delta.offsets or ()]
        if echo is not None:
            entries = [None, *echo.logprobs, *entries]
            tokens = [*echo.tokens, *tokens]
            offsets = [*echo.offsets, *offsets]
        if not tokens:
            return None
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [None if entry is None else _finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def prompt(self, tokens: Sequence[int], entries: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
        """vLLM's ``prompt_logprobs``: for each token of the prompt the candidates by id; ``None`` for the first."""
        return [None, *(self._candidates(entry) for entry in entries)] if tokens else []

    def _content(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token, logprob) for token, logprob in entry.top]
        return {**self._token(entry.token, entry.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._tokens.text(token),
            "logprob": _finite(logprob),
            "bytes": list(self._tokens.of(token)),
        }

    def _name(self, token: int) -> str:
        return f"{BY_ID}{token}" if self._as_ids else self._tokens.text(token, prefix="bytes:")

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Two tokens of one text (a control token and the same characters) share a name: the likelier one keeps it."""
        named: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            named.setdefault(self._name(token), _finite(logprob))
        return named

    def _candidates(self, entry: TokenLogprob) -> dict[str, Any]:
        candidates: dict[str, Any] = {
            str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": self._tokens.text(token)}
            for rank, (token, logprob) in enumerate(entry.top, start=1)
        }
        chosen = {"logprob": _finite(entry.logprob), "rank": None, "decoded_token": self._tokens.text(entry.token)}
        candidates.setdefault(str(entry.token), chosen)
        return candidates


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that goes before its completion.

    :param offsets: where each token begins in ``text``, in characters.
    :param logprobs: of the tokens from the second on.
    """

    text: str
    tokens: Sequence[int]
    offsets: Sequence[int]
    logprobs: Sequence[TokenLogprob] = ()

    @classmethod
    def of(cls, renderer: PromptRenderer, tokens: Sequence[int], text: str | None = None) -> Echo:
        """:param text: the prompt as it was sent; what the tokens decode to where it came as ids."""
        detokenizer = Detokenizer(renderer)
        offsets, length = [], 0
        pieces = []
        for token in tokens:
            piece = detokenizer.push([token])
            begin = length + renderer.token_bytes.begins(token, piece)
            offsets.append(begin if text is None else min(begin, len(text)))
            pieces.append(piece)
            length += len(piece)
        return cls("".join([*pieces, detokenizer.flush()]) if text is None else text, tokens, offsets)


def _finite(logprob: float) -> float:
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB  # also for NaN, which JSON does not have
