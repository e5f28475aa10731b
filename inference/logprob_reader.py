"""Reads log-probabilities out of a worker's answer: the way back from :mod:`inference.logprob_shapes`.

Tokens have to be named by id (``return_tokens_as_token_ids``): their text says neither which they are nor which bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.protocol import TokenLogprob

BY_ID = "token_id:"


def completion_entries(logprobs: Mapping[str, Any], top: int) -> tuple[TokenLogprob, ...]:
    """A completion's ``logprobs``, without an echoed prompt.

    :param top: how many of the most likely tokens were asked for; the chosen one may stand beside them.

    Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else.
    """
    return tuple(
        TokenLogprob(_id(name), float(logprob), _ranked(best or {}, top))
        for name, logprob, best in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        )
    )


def prompt_entries(
    positions: Sequence[Mapping[str, Any] | None], prompt: Sequence[int], top: int
) -> tuple[TokenLogprob, ...]:
    """vLLM's ``prompt_logprobs`` of ``prompt``, from its second token on. Raises as :func:`completion_entries`."""
    entries = []
    for token, candidates in zip(prompt[1:], positions[1:], strict=True):
        if candidates is None:
            raise ValueError("a token of the prompt has no log-probability")
        named = {name: candidate["logprob"] for name, candidate in candidates.items()}
        best = sorted(((int(name), float(value)) for name, value in named.items()), key=lambda pair: -pair[1])
        entries.append(TokenLogprob(token, float(named[str(token)]), tuple(best[:top])))
    return tuple(entries)


def _ranked(named: Mapping[str, Any], top: int) -> tuple[tuple[int, float], ...]:
    best = sorted(((_id(name), float(value)) for name, value in named.items()), key=lambda pair: -pair[1])
    return tuple(best[:top])


def _id(name: str) -> int:
    if not name.startswith(BY_ID):
        raise ValueError("tokens are not named by id")
    return int(name.removeprefix(BY_ID))
