"""Chooses one token per row of logits.

A draw depends on the request alone: the uniform number behind token ``n`` is a hash of (seed, n), so that a request
gives the same tokens whatever shares its batch and wherever it is resumed. Order: repetition penalty, the other
penalties and logit bias, minimum length, then (unless greedy) temperature, top-k, top-p, min-p.

:mod:`inference.device_sampler` gives the same tokens without the host waiting for the device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.core.step import Row
from inference.greedy import most_likely
from inference.protocol import SamplingParams
from inference.token_weights import UNIT, pick, weights

# Truncated rows are cut to this many candidates first; a nucleus that needs more is sorted in full.
_CANDIDATES = 256
# Numbers drawn from at a time, over rows: 16 rows of 49,152 take 1.3 ms in any process; all at once 1.4 to 10, by
# whether malloc gives what it frees back to the system.
_TOGETHER = 1 << 18
_LEAST_TEMPERATURE = 1e-6
_NONE = np.empty(0, np.int64)


class Groups(NamedTuple):
    """Indices of rows by how they are chosen from."""

    greedy: list[int]
    full: list[int]
    truncated: list[int]


class Adjustment(NamedTuple):
    """What a row's parameters change in its logits, in this order.

    :ivar seen: int64, to be made less likely by ``repetition_penalty``, once each; some may stand there twice.
    :ivar tokens: int64, none twice, to which the float32 ``amounts`` are added.
    :ivar ends: int64, that cannot be chosen yet.
    """

    seen: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    amounts: npt.NDArray[np.float32]
    ends: npt.NDArray[np.int64]


def sample(logits: Tensor, rows: Sequence[Row], eos_token_ids: Collection[int]) -> list[int]:
    """:param logits: ``[n, vocab]``, float32; written to.

    :param rows: the ``n`` rows, each with ``params``.
    """
    chosen = [0] * len(rows)
    for index, row in enumerate(rows):
        found = adjustment(row, logits.shape[1], eos_token_ids)
        if found is not None:
            _adjust(logits[index], params_of(row).repetition_penalty, found)
    groups = grouped(rows)
    if greedy := groups.greedy:
        picked = logits if len(greedy) == len(rows) else logits[greedy]
        for index, token in zip(greedy, most_likely(picked), strict=True):
            chosen[index] = token
    if full := groups.full:
        step = max(1, _TOGETHER // logits.shape[1])
        for part in (full[at : at + step] for at in range(0, len(full), step)):
            for index, token in zip(part, _draw(logits[part], [rows[index] for index in part]), strict=True):
                chosen[index] = token
    for index in groups.truncated:
        chosen[index] = _draw_truncated(logits[index], rows[index])
    return chosen


def params_of(row: Row) -> SamplingParams:
    assert row.params is not None
    return row.params


def grouped(rows: Sequence[Row]) -> Groups:
    groups = Groups([], [], [])
    for index, row in enumerate(rows):
        params = params_of(row)
        if params.temperature == 0:
            groups.greedy.append(index)
        elif params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
            groups.truncated.append(index)
        else:
            groups.full.append(index)
    return groups


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is a function of its arguments alone, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def uniforms(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    return np.array([uniform(row.seed, len(row.output)) for row in rows], np.float64)


def temperatures(rows: Sequence[Row]) -> npt.NDArray[np.float32]:
    return np.array([max(params_of(row).temperature, _LEAST_TEMPERATURE) for row in rows], np.float32)


def least_weight(params: SamplingParams) -> int:
    """Below it ``min_p`` leaves a token out."""
    return math.ceil(params.min_p * UNIT)


def adjustment(row: Row, vocab_size: int, eos_token_ids: Collection[int]) -> Adjustment | None:
    """``None`` for most rows. Tokens outside the vocabulary, which nobody can choose, are left out.

    Reads the contents of ``row.output`` only where :attr:`~inference.protocol.SamplingParams.penalises` says so.
    """
    params = params_of(row)
    penalised = bool(params.presence_penalty or params.frequency_penalty) and len(row.output) > 0
    # a mask has seen to it, as far as its language may
    early = len(row.output) < params.min_tokens and row.mask is None
    if params.repetition_penalty == 1.0 and not (penalised or early or params.logit_bias):
        return None
    seen = ends = _NONE
    if params.repetition_penalty != 1.0:
        seen = np.concatenate((_distinct(_Same(row.prompt)), _int64s(row.output)))
    if early:
        ends = _int64s({*params.stop_token_ids, *eos_token_ids})
    tokens, amounts = _added(params, row.output if penalised else ())
    inside = (tokens >= 0) & (tokens < vocab_size)
    return Adjustment(_within(seen, vocab_size), tokens[inside], amounts[inside], _within(ends, vocab_size))


def _added(params: SamplingParams, output: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Logit bias less the penalties on ``output``, each token once."""
    tokens = _int64s(params.logit_bias)
    amounts = np.fromiter(params.logit_bias.values(), np.float64, len(tokens))
    if output:
        generated, times = np.unique(_int64s(output), return_counts=True)
        tokens = np.concatenate((tokens, generated))
        amounts = np.concatenate((amounts, -(params.presence_penalty + params.frequency_penalty * times)))
        if params.logit_bias:
            tokens, places = np.unique(tokens, return_inverse=True)
            amounts = np.bincount(places, weights=amounts).astype(np.float64)
    return tokens, amounts.astype(np.float32)


class _Same:
    """Equal to what holds the very same sequence."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def __hash__(self) -> int:
        return id(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.tokens is other.tokens


@lru_cache(maxsize=64)
def _distinct(prompt: _Same) -> npt.NDArray[np.int64]:
    """A prompt's tokens, each once. Kept, since they are the same in every step, and 2,000 take 0.1 ms."""
    return np.unique(_int64s(prompt.tokens))


def _int64s(tokens: Collection[int]) -> npt.NDArray[np.int64]:
    return np.fromiter(tokens, np.int64, len(tokens))


def _within(tokens: npt.NDArray[np.int64], vocab_size: int) -> npt.NDArray[np.int64]:
    return tokens[(tokens >= 0) & (tokens < vocab_size)]


def _adjust(logits: Tensor, repetition_penalty: float, found: Adjustment) -> None:
    """One row, in place."""
    seen, tokens, amounts, ends = (torch.from_numpy(part).to(logits.device) for part in found)
    if len(seen):
        values = logits[seen]
        # by a tensor of them: CUDA multiplies by the reciprocal of a single number, which rounds otherwise
        penalties = torch.full_like(values, repetition_penalty)
        logits[seen] = torch.where(values > 0, values / penalties, values * penalties)
    logits[tokens] += amounts
    logits[ends] = float("-inf")


def _draw(logits: Tensor, rows: Sequence[Row]) -> list[int]:
    sums = weights(logits, torch.from_numpy(temperatures(rows)).to(logits.device)).cumsum(dim=1)
    return pick(sums, sums[:, -1:], torch.from_numpy(uniforms(rows)).to(logits.device)).tolist()


def _draw_truncated(logits: Tensor, row: Row) -> int:
    """Candidates by falling logit, ties by token id; the nucleus includes the token that crosses ``top_p``."""
    params, size = params_of(row), len(logits)
    temperature = torch.from_numpy(temperatures([row])).to(logits.device)
    count = min(size, params.top_k if params.top_k > 0 else _CANDIDATES)
    tokens = _largest(logits, count)
    found = weights(logits[tokens][None], temperature)[0]
    # the nucleus is a share of the distribution that top-k left
    whole = found if params.top_k > 0 or params.top_p >= 1 else weights(logits[None], temperature)[0]
    limit = math.ceil(params.top_p * int(whole.sum())) if params.top_p < 1 else math.inf
    least = least_weight(params)
    if params.top_k == 0 and count < size and int(found.sum()) < limit and int(found[-1]) >= least:
        tokens = _largest(logits, size)
        found = weights(logits[tokens][None], temperature)[0]
    sums = found.cumsum(0)
    kept = found >= least
    if params.top_p < 1:
        kept &= sums - found < limit  # what is before a token
    number = torch.from_numpy(uniforms([row])).to(logits.device)
    return int(tokens[pick(sums[None], (found * kept).sum()[None, None], number)])


def _largest(logits: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` largest; among equals the lowest, which ``topk`` alone does not promise."""
    if count < len(logits):
        threshold = logits.topk(count).values[-1]
        tokens = torch.logical_not(logits < threshold).nonzero().flatten()  # NaN, which topk takes for the largest, too
    else:
        tokens = torch.arange(len(logits), device=logits.device)
    order = logits[tokens].sort(descending=True, stable=True).indices
    return tokens[order[:count]]
