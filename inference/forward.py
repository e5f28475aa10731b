"""A step's rows through the decoder, from graphs where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from inference.attention.base import AttentionBackend
from inference.core.step import Row
from inference.models.decoder import Decoder
from inference.parcel import Parcel
from sgmv import Plan

if TYPE_CHECKING:  # a CPU needs no Triton
    from inference.decode_graphs import Capture, DecodeGraphs


class Forward:
    """Tokens in, hidden states out; and the tokens sampled last, which the next step's rows may follow.

    :param most_rows: of a step that others follow.
    """

    def __init__(self, decoder: Decoder, attention: AttentionBackend, device: torch.device, most_rows: int) -> None:
        self._decoder, self._attention, self._device = decoder, attention, device
        self._graphs: DecodeGraphs | None = None
        self._sampled = torch.zeros(most_rows, dtype=torch.int64, device=device)
        self._places: Mapping[int, int] = {}

    def capture(self, capture: Capture, max_length: int) -> None:
        """From now on steps of one token a row come from graphs, where attention has Triton's kernels.

        :param max_length: positions of the longest sequence.
        """
        from inference.attention.triton_backend import TritonAttention
        from inference.decode_graphs import DecodeGraphs

        if isinstance(self._attention, TritonAttention):
            self._graphs = DecodeGraphs(
                self._decoder, self._attention, max_length=max_length, sampled=self._sampled, capture=capture
            )

    def compute(self, rows: Sequence[Row]) -> Tensor:
        """Compute KV for all rows' tokens, laid end to end. ``[T, hidden]``, before the last norm, until the next call.

        In inference mode.
        """
        follows = [None if row.follows is None else self._places[row.follows] for row in rows]
        if self._graphs is not None and self._graphs.fits(rows):
            return self._graphs.compute(rows, follows)
        parcel = Parcel()
        slots: list[int] = []
        tokens: list[int] = []
        positions: list[int] = []
        unknown: list[int] = []
        for row, followed in zip(rows, follows, strict=True):
            count = len(row.tokens)
            tokens.extend(row.tokens)
            positions.extend(range(row.start, row.start + count))
            slots.extend([row.slot] * count)
            if followed is not None:
                unknown.append(len(tokens) - 1)
        parcel.add("tokens", np.array(tokens, np.int64))
        parcel.add("positions", np.array(positions, np.int64))
        parcel.add("unknown", np.array(unknown, np.int64))
        parcel.add("sources", np.array([followed for followed in follows if followed is not None], np.int64))
        sent = parcel.send(self._device)
        ids = sent["tokens"]
        if unknown:
            ids.index_copy_(0, sent["unknown"], self._sampled.index_select(0, sent["sources"]))
        step = self._attention.begin(rows)
        return self._decoder.forward(ids, sent["positions"], Plan(slots), self._attention, step)

    def remember(self, tokens: Tensor, places: Mapping[int, int]) -> None:
        """What the step sampled, for the one after it.

        :param tokens: ``[n]`` int64, on the device. :param places: of each row that sampled, by its number, in it.
        """
        self._places = {}
        if len(tokens) <= len(self._sampled):  # more come of guesses, which nobody follows
            self._sampled[: len(tokens)].copy_(tokens)
            self._places = places
