"""Chooses one token per row of logits.

A draw depends on the request alone: the uniform number behind token ``n`` is a hash of (seed, n), so that a request
gives the same tokens whatever shares its batch and wherever it is resumed. Order: penalties, logit bias, minimum
length, then (unless greedy) temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from inference.core.step import Row
from inference.greedy import most_likely
from inference.protocol import SamplingParams

# Truncated rows are cut to this many candidates first; a nucleus that needs more is sorted in full.
_CANDIDATES = 256


def sample(logits: Tensor, rows: Sequence[Row], eos_token_ids: Collection[int]) -> list[int]:
    """:param logits: ``[n, vocab]``, float32; written to.

    :param rows: the ``n`` rows, each with ``params``.
    """
    chosen = [0] * len(rows)
    groups: dict[str, list[int]] = {"greedy": [], "full": [], "truncated": []}
    for index, row in enumerate(rows):
        assert row.params is not None
        _adjust(logits[index], row, row.params, eos_token_ids)
        groups[_kind(row.params)].append(index)
    if greedy := groups["greedy"]:
        picked = logits if len(greedy) == len(rows) else logits[greedy]
        for index, token in zip(greedy, most_likely(picked), strict=True):
            chosen[index] = token
    if full := groups["full"]:
        probabilities = _probabilities(logits, rows, full)
        for index, token in zip(full, _draw(probabilities, _uniforms(rows, full)).tolist(), strict=True):
            chosen[index] = token
    for index in groups["truncated"]:
        params = rows[index].params
        assert params is not None
        probabilities = _probabilities(logits, rows, [index])[0]
        chosen[index] = _draw_truncated(probabilities, params, uniform(rows[index].seed, len(rows[index].output)))
    return chosen


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that is a function of its arguments alone, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _kind(params: SamplingParams) -> str:
    if params.temperature == 0:
        return "greedy"
    return "truncated" if params.top_k > 0 or params.top_p < 1 or params.min_p > 0 else "full"


def _adjust(logits: Tensor, row: Row, params: SamplingParams, eos_token_ids: Collection[int]) -> None:
    """Penalties, bias and minimum length of one row, in place. A row without any returns at once."""
    if params.repetition_penalty != 1.0 and (row.prompt or row.output):
        seen = torch.tensor(sorted({*row.prompt, *row.output}), device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and row.output:
        counts = Counter(row.output)
        tokens = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[tokens] -= params.presence_penalty + params.frequency_penalty * times
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[tokens] += torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if len(row.output) < params.min_tokens and row.mask is None:  # a mask has seen to it, as far as its language may
        ends = {*params.stop_token_ids, *eos_token_ids}
        if ends:
            logits[sorted(ends)] = float("-inf")


def _probabilities(logits: Tensor, rows: Sequence[Row], indices: list[int]) -> Tensor:
    temperatures = [params.temperature for index in indices if (params := rows[index].params) is not None]
    # A temperature near 0 would overflow; after the subtraction the largest is 0 and the others only underflow.
    chosen = logits[indices]
    chosen = chosen - chosen.amax(dim=1, keepdim=True)
    scale = torch.tensor(temperatures, dtype=torch.float64, device=logits.device).clamp_(min=1e-6)
    return torch.softmax((chosen / scale[:, None]).float(), dim=1)


def _uniforms(rows: Sequence[Row], indices: list[int]) -> Tensor:
    numbers = [uniform(rows[index].seed, len(rows[index].output)) for index in indices]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse of the cumulative distribution over the last dimension; float64, or the sum over a vocabulary drifts."""
    total = probabilities.cumsum(dim=-1, dtype=torch.float64)
    wanted = uniforms.to(total.device)[:, None] * total[:, -1:]
    return (total <= wanted).sum(dim=-1).clamp_(max=probabilities.shape[-1] - 1)


def _draw_truncated(probabilities: Tensor, params: SamplingParams, number: float) -> int:
    """Candidates by falling probability, ties by token id; the nucleus includes the token that crosses ``top_p``."""
    size = len(probabilities)
    count = min(size, params.top_k) if params.top_k > 0 else min(size, _CANDIDATES)
    values, tokens = _largest(probabilities, count)
    if params.top_k == 0 and count < size:
        reached = params.top_p < 1 and float(values.double().sum()) >= params.top_p
        cut = params.min_p > 0 and float(values[-1]) < params.min_p * float(values[0])
        if not (reached or cut):
            values, tokens = _largest(probabilities, size)
    mass = values.double()
    if params.top_p < 1:
        # the probability before this token; over the distribution that top-k left
        whole = mass.sum() if params.top_k > 0 else probabilities.sum(dtype=torch.float64)
        mass = torch.where(mass.cumsum(0) - mass < params.top_p * whole, mass, 0.0)
    if params.min_p > 0:
        mass = torch.where(values >= params.min_p * values[0], mass, 0.0)
    return int(tokens[_draw(mass[None], torch.tensor([number], dtype=torch.float64, device="cpu"))])


def _largest(probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest; among equals the lowest token ids, which ``topk`` alone does not promise."""
    if count < len(probabilities):
        threshold = probabilities.topk(count).values[-1]
        tokens = (probabilities >= threshold).nonzero().flatten()
    else:
        tokens = torch.arange(len(probabilities), device=probabilities.device)
    values, order = probabilities[tokens].sort(descending=True, stable=True)
    return values[:count], tokens[order[:count]]
