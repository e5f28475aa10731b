"""Chooses one token per row of logits on the device, without the host waiting for it.

Its specification is :func:`inference.sampler.sample`, whose tokens it gives. Whatever the host knows goes over in one
copy, no shape depends on what the device computed, and nothing is launched row by row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from inference.core.step import Row
from inference.parcel import Parcel
from inference.sampler import adjustment, grouped, least_weight, params_of, temperatures, uniforms
from inference.token_weights import pick, weights

# Numbers drawn from at a time, over rows: what is made of them takes some 40 bytes each, 170 MB together.
_TOGETHER = 1 << 22
# Twice the whole distribution: ``top_p`` of a row that keeps it. 1.0 could lose the last tokens to rounding.
_ALL = 2.0
_OF_DRAWS = ("rows", "temperatures", "uniforms", "top_k", "top_p", "min_p")


def sample_on_device(logits: Tensor, rows: Sequence[Row], eos_token_ids: Collection[int]) -> Tensor:
    """``[n]`` int64, where ``logits`` are. Logits that are not numbers give some token.

    A row's token does not depend on the others: each number of a row is computed from that row's alone, sums are sums
    of integers, and a stable sort has one answer. Two things are assumed of torch on CUDA and not shown by any test
    here: that element-wise operations round the same wherever an element lies in a tensor, and that ``argmax`` returns
    the first of equals, as its documentation says. What of torch waits for the device inside is not shown either:
    the tests see its operations, not its allocator.

    :param logits: ``[n, vocab]``, float32; may be written to.
    :param rows: the ``n`` rows, each with ``params``. What ``output`` holds is read only where
        :attr:`~inference.protocol.SamplingParams.penalises`; its length always.
    """
    logits = logits.contiguous()
    groups = grouped(rows)
    parcel = Parcel()
    _lay_adjustments(parcel, rows, logits.shape[1], eos_token_ids)
    drawing = groups.full + groups.truncated
    _lay_draws(parcel, [rows[index] for index in drawing], drawing)
    sent = parcel.send(logits.device)
    _adjust(logits, sent)
    if groups.greedy:
        chosen = logits.argmax(dim=1)
    else:
        chosen = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    step = max(1, _TOGETHER // logits.shape[1])
    for begin, end, draw in ((0, len(groups.full), _draw), (len(groups.full), len(drawing), _draw_truncated)):
        for at in range(begin, end, step):
            part = {name: sent[name][at : min(at + step, end)] for name in _OF_DRAWS}
            whole = end - begin == len(rows)  # then there is nothing to gather
            given = logits[at : at + step] if whole else logits.index_select(0, part["rows"])
            chosen.index_copy_(0, part["rows"], draw(given, part))
    return chosen


def _lay_adjustments(parcel: Parcel, rows: Sequence[Row], width: int, eos_token_ids: Collection[int]) -> None:
    """All rows' together, each token by its place among all rows' logits laid end to end."""
    found = [
        (index * width, params_of(row).repetition_penalty, change)
        for index, row in enumerate(rows)
        if (change := adjustment(row, width, eos_token_ids)) is not None
    ]
    if not found:
        return
    parcel.add("seen", np.concatenate([begin + change.seen for begin, _, change in found]))
    penalties = np.array([penalty for _, penalty, _ in found], np.float32)
    parcel.add("penalties", penalties.repeat([len(change.seen) for _, _, change in found]))
    parcel.add("tokens", np.concatenate([begin + change.tokens for begin, _, change in found]))
    parcel.add("amounts", np.concatenate([change.amounts for _, _, change in found]))
    parcel.add("ends", np.concatenate([begin + change.ends for begin, _, change in found]))


def _lay_draws(parcel: Parcel, rows: Sequence[Row], places: list[int]) -> None:
    """One number of each name in :data:`_OF_DRAWS` for each row that draws. :param places: where their logits are."""
    params = [params_of(row) for row in rows]
    parcel.add("rows", np.array(places, np.int64))
    parcel.add("temperatures", temperatures(rows))
    parcel.add("uniforms", uniforms(rows))
    parcel.add("top_k", np.array([each.top_k or np.iinfo(np.int64).max for each in params], np.int64))
    parcel.add("top_p", np.array([each.top_p if each.top_p < 1 else _ALL for each in params], np.float64))
    parcel.add("min_p", np.array([least_weight(each) for each in params], np.int64))


def _adjust(logits: Tensor, sent: Mapping[str, Tensor]) -> None:
    """In place. No two rows share a place; where one is named twice, the same is written to it twice."""
    flat = logits.view(-1)
    if (seen := sent.get("seen")) is not None:
        values = flat.index_select(0, seen)
        flat.index_copy_(0, seen, torch.where(values > 0, values / sent["penalties"], values * sent["penalties"]))
    if (tokens := sent.get("tokens")) is not None:
        flat.index_copy_(0, tokens, flat.index_select(0, tokens) + sent["amounts"])
    if (ends := sent.get("ends")) is not None:
        flat.index_fill_(0, ends, float("-inf"))


def _draw(logits: Tensor, sent: Mapping[str, Tensor]) -> Tensor:
    sums = weights(logits, sent["temperatures"]).cumsum(dim=1)
    return pick(sums, sums[:, -1:], sent["uniforms"])


def _draw_truncated(logits: Tensor, sent: Mapping[str, Tensor]) -> Tensor:
    """By falling logit, ties by token id. What is kept is the beginning of that order, so its sums need no repeat."""
    ordered, tokens = logits.sort(dim=1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    found = weights(ordered, sent["temperatures"]).mul_(ranks < sent["top_k"][:, None])
    sums = found.cumsum(dim=1)
    limit = (sent["top_p"][:, None] * sums[:, -1:]).ceil_().long()
    kept = (found >= sent["min_p"][:, None]).logical_and_(sums - found < limit)
    total = found.mul_(kept).sum(dim=1, keepdim=True)
    return tokens.gather(1, pick(sums, total, sent["uniforms"])[:, None])[:, 0]
