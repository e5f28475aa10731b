"""Log-probabilities of chosen tokens and of the most likely ones beside them.

They are those of the model's own distribution: the logits as they left the head, before penalties, bias, masks,
temperature and cuts (vLLM's ``raw_logprobs``). So a token's figure does not depend on how the request samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.protocol import TokenLogprob

SLICE_BYTES = 16 * 1024 * 1024
"""Logits of a prompt are computed in slices of about this size: a chunk of 512 tokens at once would be 100 MB."""


def slice_rows(vocab_size: int) -> int:
    """How many rows of float32 logits one slice has."""
    return max(1, SLICE_BYTES // (4 * vocab_size))


def token_logprobs(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Natural logarithms, one entry a row; among equal logits the lowest token id comes first.

    :param logits: ``[n, vocab]``, float32; not written to.
    :param tokens: ``n`` ids to report.
    :param tops: ``n`` numbers of most likely tokens to report beside them, each from 0 up.
    """
    if not tokens:
        return []
    total = logits.logsumexp(dim=1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None]) - total
    widest = min(max(tops), logits.shape[1])
    best = _best(logits, total, widest) if widest else [[] for _ in tokens]
    return [
        TokenLogprob(token, logprob, tuple(ranked[:top]))
        for token, logprob, ranked, top in zip(tokens, chosen[:, 0].tolist(), best, tops, strict=True)
    ]


def _best(logits: Tensor, total: Tensor, count: int) -> list[list[tuple[int, float]]]:
    # One more than asked for shows whether equals stand on both sides of the cut: topk may choose any of those.
    seen = min(count + 1, logits.shape[1])
    values, ids = logits.topk(seen, dim=1)
    cut = (values[:, count - 1] == values[:, seen - 1]).tolist() if seen > count else [False] * len(logits)
    ranked = []
    for row, (row_values, row_ids, row_total, tied) in enumerate(
        zip(values.tolist(), ids.tolist(), total[:, 0].tolist(), cut, strict=True)
    ):
        if tied:
            equal = (logits[row] >= row_values[-1]).nonzero().flatten()
            pairs = zip(logits[row][equal].tolist(), equal.tolist(), strict=True)
        else:
            pairs = zip(row_values[:count], row_ids, strict=False)
        ordered = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:count]
        ranked.append([(token, value - row_total) for value, token in ordered])
    return ranked
