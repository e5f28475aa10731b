"""Log-probabilities of chosen tokens and of the most likely ones beside them.

They are those of the model's own distribution: the logits as they left the head, before penalties, bias, masks,
temperature and cuts (vLLM's ``raw_logprobs``). So a token's figure does not depend on how the request samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from inference.parcel import Parcel
from inference.protocol import TokenLogprob
from inference.readback import Readback

SLICE_BYTES = 16 * 1024 * 1024
"""Logits of a prompt are computed in slices of about this size: a chunk of 512 tokens at once would be 100 MB."""


def slice_rows(vocab_size: int) -> int:
    """How many rows of float32 logits one slice has."""
    return max(1, SLICE_BYTES // (4 * vocab_size))


class Logprobs:
    """Those of a step's tokens, computed where the logits are. Build one with :meth:`begin`.

    The host waits for nothing before :meth:`read`; until then the logits are neither kept nor looked at again.
    """

    def __init__(self, found: Readback | None, tops: Sequence[int]) -> None:
        self._found, self._tops = found, tops

    @classmethod
    def begin(cls, logits: Tensor, tokens: Sequence[int] | Tensor, tops: Sequence[int]) -> Logprobs:
        """Natural logarithms; among equal logits the lowest token id comes first.

        :param logits: ``[n, vocab]``, float32; not written to.
        :param tokens: ``n`` ids to report, or ``[n]`` int64 where ``logits`` are.
        :param tops: ``n`` numbers of most likely tokens to report beside them, each from 0 up.
        """
        if not tops:
            return cls(None, ())
        if not isinstance(tokens, Tensor):
            parcel = Parcel()
            parcel.add("tokens", np.array(tokens, np.int64))
            tokens = parcel.send(logits.device)["tokens"]
        total = logits.logsumexp(dim=1, keepdim=True)
        chosen = logits.gather(1, tokens[:, None]) - total
        # float64 holds ids and float32 numbers alike: all of it in one copy
        parts = [tokens[:, None].double(), chosen.double(), total.double()]
        if widest := min(max(tops), logits.shape[1]):
            find = best if logits.device.type == "cpu" else best_by_key
            values, ids = find(logits, widest)
            parts += [values.double(), ids.double()]
        return cls(Readback(torch.cat(parts, dim=1)), tops)

    def read(self) -> list[TokenLogprob]:
        """One entry a row. Waits for the device to have computed them."""
        if self._found is None:
            return []
        entries = []
        for (token, chosen, total, *others), top in zip(self._found.read().tolist(), self._tops, strict=True):
            count = len(others) // 2
            ranked = zip(others[count : count + top], others[:top], strict=False)
            entries.append(
                TokenLogprob(int(token), chosen, tuple((int(each), value - total) for each, value in ranked))
            )
        return entries


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's ``count`` largest and their ids, largest first, among equals the lowest id: ``[n, count]`` each.

    Reads numbers on the host, for speed on the CPU: 0.6 ms for 20 of 49,152 in 16 rows, where keys take 2.3.
    """
    # One more than asked for shows whether equals stand on both sides of the cut: topk may choose any of those.
    seen = min(count + 1, logits.shape[1])
    values, ids = logits.topk(seen, dim=1)
    ids, order = ids.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    if seen > count:
        tied = (values[:, count - 1] == values[:, count]).nonzero().flatten()
        values, ids = values[:, :count].contiguous(), ids[:, :count].contiguous()
        if len(tied):
            values[tied], ids[tied] = best_by_key(logits[tied], count)
    return values, ids


def best_by_key(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same by keys of which no two are equal: of no shape that depends on the numbers.

    A key is the logit's bits, turned so that they are ordered as an integer, above the token's id, least first.
    """
    values, ids = [], []
    step = slice_rows(logits.shape[1])
    for part in (logits[at : at + step] for at in range(0, len(logits), step)):
        bits = (part + 0.0).view(torch.int32)  # of -0.0 it makes 0.0, its equal
        ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        keys = (ordered.long() << 32).sub_(torch.arange(part.shape[1], device=part.device))
        found = keys.topk(count, dim=1).values.neg_().bitwise_and_(0xFFFFFFFF)
        ids.append(found)
        values.append(part.gather(1, found))
    return torch.cat(values), torch.cat(ids)
