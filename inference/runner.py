"""Runs the scheduler's steps with torch: one flat batch through the decoder, a token for each row that asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from inference.adapter_tensors import MAX_RANK
from inference.adapters.host import HostAdapter, read_adapter
from inference.adapters.part import part_of
from inference.adapters.slots import AdapterSlots
from inference.attention.base import AttentionBackend
from inference.attention.make import block_bytes, make_attention
from inference.core.step import Done, Launched, Row, Sampled
from inference.device import choose
from inference.device_errors import device_errors, first_line
from inference.device_room import DeviceRoom, blocks_that_fit
from inference.device_sampler import sample_on_device
from inference.draws import Draws
from inference.errors import ConfigError, InferenceError
from inference.forward import Forward
from inference.launched import LaunchedStep
from inference.logprobs import Logprobs, slice_rows
from inference.masks import apply_masks
from inference.model_config import ModelConfig, end_tokens
from inference.models.checkpoint import Checkpoint
from inference.models.decoder import Decoder
from inference.models.loader import load_decoder
from inference.parallel.peers import Followers, Peers
from inference.parallel.shard import WHOLE, Shard
from inference.parcel import Parcel
from inference.process_settings import settle
from inference.readback import Readback
from inference.sampler import sample
from inference.sizes import check_sizes, longest_sequence
from sgmv import FP8, Storage

if TYPE_CHECKING:  # a CPU needs no Triton
    from inference.decode_graphs import Capture


class TorchRunner:
    """A :class:`~inference.core.step.Runner`. Build one with :meth:`load`.

    :ivar ahead: see :meth:`go_ahead`.
    """

    def __init__(
        self,
        decoder: Decoder,
        attention: AttentionBackend,
        *,
        model_dir: Path,
        num_slots: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
        dtype: torch.dtype,
        weights: str = "full",
        adapters: str = "full",
        most_rows: int = 64,
        shard: Shard = WHOLE,
        followers: Followers | None = None,
    ) -> None:
        self.block_size, self.num_blocks = attention.block_size, attention.num_blocks
        self.num_slots, self.max_model_len = num_slots, max_model_len
        self.vocab_size = decoder.config.vocab_size
        self.eos_token_ids = eos_token_ids
        # KV that other weights computed is other KV: their name is part of every cache key, and of every answer's tag.
        # So is how adapters are held, and the number of ranks, whose sums round otherwise.
        parts = [str(dtype).removeprefix("torch."), *([weights] if weights != "full" else [])]
        parts += [f"adapters-{adapters}"] if adapters != "full" else []
        parts += [f"tp{shard.size}"] if shard.size > 1 else []
        self.kv_dtype = "-".join(parts)
        self._decoder, self._attention, self._model_dir = decoder, attention, model_dir
        self._slots = AdapterSlots(decoder.sites, num_slots)
        self._whole, self._shard, self._followers = ModelConfig.load(model_dir), shard, followers
        self._device, self._dtype = device, dtype
        self.ahead, self._most_rows = False, most_rows
        self._room: DeviceRoom | None = None
        self._forward = Forward(decoder, attention, device, most_rows)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        num_blocks: int | None,
        block_size: int = 16,
        num_slots: int,
        max_model_len: int | None,
        threads: int | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        weights: str = "full",
        adapters: str = "full",
        most_rows: int = 64,
        most_tokens: int = 2048,
        eager: bool = False,
        peers: Peers | None = None,
        followers: Followers | None = None,
    ) -> TorchRunner:
        """Load a registered model.

        :param num_blocks: of the KV pool, which all sequences share; ``None``: what one CUDA device has memory for.
        :param max_model_len: tokens of a sequence; ``None``: what the model and the pool hold.
        :param threads: torch's threads for one operation; ``None`` leaves torch's choice. Process-wide.
        :param dtype: of weights, KV and computation. :param device: see :func:`inference.device.choose` for both.
        :param weights: how the linears hold theirs, see :func:`inference.models.linear.make_linear`.
        :param adapters: ``full``: in ``dtype``; ``fp8``: see :class:`sgmv.Storage`.
        :param most_rows: of a step that decodes: on CUDA it has a graph for so many and for fewer.
        :param most_tokens: of a step: on CUDA memory for so many is kept.
        :param eager: on CUDA: no graphs, and each step is waited for.
        :param peers: compute this rank's part of a model that several processes share; see :mod:`inference.parallel`.
        :param followers: told of what is computed, before it is.
        :raises ConfigError: a size is out of range, a file is missing, or the model is not supported.
        """
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_model_len": max_model_len}
        check_sizes(num_slots, **sizes, most_rows=most_rows, most_tokens=most_tokens)
        longest = longest_sequence(ModelConfig.load(model_dir).max_position, max_model_len, num_blocks, block_size)
        place, kind = choose(device, dtype)
        with device_errors(place, num_blocks):
            settle(place, threads)
            storage = _storage(place, num_slots, adapters)
            decoder = load_decoder(
                model_dir, positions=longest, device=place, dtype=kind, held=weights, peers=peers, storage=storage
            )
            config = decoder.config
            if num_blocks is None:
                least = -(-(max_model_len or 1) // block_size)
                num_blocks = blocks_that_fit(place, block_bytes(config, block_size, kind), least)
                longest = longest_sequence(longest, max_model_len, num_blocks, block_size)
            runner = cls(
                decoder,
                make_attention(config, num_blocks=num_blocks, block_size=block_size, device=place, dtype=kind),
                model_dir=model_dir,
                num_slots=num_slots,
                max_model_len=longest,
                eos_token_ids=_end_tokens(model_dir),
                device=place,
                dtype=kind,
                weights=weights,
                adapters=adapters,
                most_rows=most_rows,
                shard=WHOLE if peers is None else peers.shard,
                followers=followers,
            )
            if place.type == "cuda":
                runner._start_device(eager, most_tokens, alone=peers is None)
        return runner

    def go_ahead(self, capture: Capture | None = None) -> None:
        """From now on :meth:`launch` returns while the device computes, and rows may follow those launched before.

        Tokens are sampled on the device and stay there, at a place that the next step reads.

        :param capture: makes graphs of steps of one token a row.
        """
        self.ahead = True
        if capture is not None:
            with torch.inference_mode():
                self._forward.capture(capture, self.max_model_len)

    def _start_device(self, eager: bool, most_tokens: int, *, alone: bool) -> None:
        """No request waits for a compiler. :param alone: no other rank takes part in steps; else rank 0 begins them."""
        from inference.decode_graphs import cuda_capture
        from inference.warm_up import warm_adapters, warm_steps

        warm_adapters(self._decoder.sites, self._device, self._dtype)
        if not alone:
            return
        self.ahead = not eager
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        warm_steps(self, self._most_rows, most_tokens)
        kept = torch.cuda.max_memory_allocated(self._device) - before
        if not eager:
            try:
                self.go_ahead(cuda_capture())
                torch.cuda.synchronize(self._device)  # what fails in a graph's first replay is told here at the latest
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                message = f"decode steps do not work as CUDA graphs ({first_line(error)})"
                raise ConfigError(f"{message}; --eager works without") from error
        self._room = DeviceRoom.of(self._device, kept)
        if self.num_slots:
            self._room.check(self._device, self.num_blocks)

    def launch(self, rows: Sequence[Row]) -> Launched:
        if not rows:
            return Done([])
        # Rows lie as the adapters' operands do, the base's first, so that the adapters' products need no gather.
        ranks = self._slots.order()
        order = sorted(range(len(rows)), key=lambda index: (ranks.get(rows[index].slot, -1), rows[index].slot))
        try:
            with torch.inference_mode():
                return self._launch([rows[index] for index in order], order)
        except RuntimeError as error:
            raise InferenceError(f"the device failed in a step: {error}") from error

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        """A step, waited for."""
        return self.launch(rows).results()

    def read_adapter(self, directory: Path) -> HostAdapter:
        adapter = read_adapter(directory, self._whole, Checkpoint(self._model_dir), self._dtype)
        return self._slots.prepared(part_of(adapter, self._whole, self._shard))

    def adapter_bytes(self, adapter: object) -> int:
        if not isinstance(adapter, HostAdapter):
            raise TypeError(f"not what read_adapter returned: {type(adapter).__name__}")
        return adapter.held_bytes

    def load_adapter(self, slot: int, adapter: object) -> None:
        if not isinstance(adapter, HostAdapter):
            raise TypeError(f"not what read_adapter returned: {type(adapter).__name__}")
        with nullcontext() if self._room is None else self._room.taking(adapter.slot_bytes):
            self._slots.load(slot, adapter)

    def clear_slot(self, slot: int) -> None:
        self._slots.clear(slot)

    def compute(self, rows: Sequence[Row]) -> Tensor:
        """Compute KV for all rows' tokens, laid end to end. ``[T, hidden]``, before the last norm.

        What :meth:`run` does before it samples. In inference mode, as :meth:`logits`.
        """
        if self._followers is not None:
            self._followers.compute(rows)
        return self._forward.compute(rows)

    def _launch(self, rows: list[Row], order: list[int]) -> Launched:
        """:param order: of each row its index among the caller's."""
        hidden = self.compute(rows)
        scores: dict[int, list[Logprobs]] = {}
        begin = 0
        for index, row in enumerate(rows):
            if row.prompt_logprobs is not None:
                scores[index] = self._score_prompt(hidden, begin, row, row.prompt_logprobs)
            begin += len(row.tokens)
        step = LaunchedStep(Draws(rows), order, scores)
        if step.draws.rows:
            self._sample(hidden, step)
        return step

    def _sample(self, hidden: Tensor, step: LaunchedStep) -> None:
        """A token for each draw, and the log-probabilities of those that ask for them."""
        rows, tops = step.draws.rows, step.draws.tops
        logits = self.logits(hidden, step.draws.places, step.draws.slots)
        raw = logits.index_select(0, self._index(list(tops))) if tops else None  # sampling writes to them
        step.late = apply_masks(logits, rows)
        if self.ahead:
            chosen = sample_on_device(logits, rows, self.eos_token_ids)
            self._forward.remember(chosen, {step.order[row]: draw for row, draw in step.draws.last.items()})
        else:
            chosen = torch.tensor(sample(logits, rows, self.eos_token_ids), device=self._device)
        # A row of logits that are no numbers has no token, whatever is chosen for it. The most likely one is the first
        # to be infinite; where draws were made, which come to the first token then, all are looked at (24 µs for 16).
        finite = logits.gather(1, chosen[:, None])[:, 0].isfinite()
        if any(row.params is not None and row.params.temperature > 0 for row in rows):
            finite &= logits.amax(dim=1).isfinite()
        step.chosen = Readback(torch.stack([chosen, finite.long()]))
        if raw is not None:
            step.logprobs = Logprobs.begin(raw, chosen.index_select(0, self._index(list(tops))), list(tops.values()))

    def _score_prompt(self, hidden: Tensor, begin: int, row: Row, top: int) -> list[Logprobs]:
        """The prompt's tokens that follow this chunk's; ``hidden[begin]`` is the chunk's first."""
        targets = row.prompt[row.start + 1 : row.start + 1 + len(row.tokens)]
        size = slice_rows(self.vocab_size)
        found: list[Logprobs] = []
        for at in range(0, len(targets), size):
            part = targets[at : at + size]
            logits = self.logits(hidden, list(range(begin + at, begin + at + len(part))), [row.slot] * len(part))
            found.append(Logprobs.begin(logits, part, [top] * len(part)))
        return found

    def logits(self, hidden: Tensor, places: Sequence[int], slots: Sequence[int]) -> Tensor:
        """``[len(places), vocab]``, float32, the caller's own; on ranks but the first a part of it.

        :param hidden: what :meth:`compute` returned last. :param places: its rows, ascending.
        """
        if self._followers is not None:
            self._followers.score(places, slots)
        if len(places) != len(hidden):
            hidden = hidden.index_select(0, self._index(places))
        return self._decoder.logits(hidden, slots).float()

    def _index(self, places: Sequence[int]) -> Tensor:
        parcel = Parcel()
        parcel.add("places", np.array(places, np.int64))
        return parcel.send(self._device)["places"]


def _storage(place: torch.device, num_slots: int, adapters: str) -> Storage:
    """On CUDA what kernels read of adapters never moves, as captured graphs need it."""
    if adapters not in ("full", "fp8"):
        raise ConfigError(f"adapter weights {adapters!r}; full or fp8")
    dtype = FP8 if adapters == "fp8" else None
    if place.type != "cuda":
        return Storage(dtype=dtype)
    return Storage(slots=max(1, num_slots), max_rank=MAX_RANK, dtype=dtype)


def _end_tokens(model_dir: Path) -> frozenset[int]:
    paths = (model_dir / "config.json", model_dir / "generation_config.json")
    return end_tokens(*(json.loads(path.read_text()) if path.is_file() else {} for path in paths))
