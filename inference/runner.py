"""Runs the scheduler's steps with torch: one flat batch through the decoder, a token for each row that asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from inference.adapters.host import HostAdapter, read_adapter
from inference.adapters.slots import AdapterSlots
from inference.attention.base import AttentionBackend
from inference.attention.make import make_attention
from inference.core.step import Row, Sampled
from inference.device import choose
from inference.errors import ConfigError, InferenceError
from inference.logprobs import slice_rows, token_logprobs
from inference.masks import apply_masks
from inference.model_config import end_tokens
from inference.models.checkpoint import Checkpoint
from inference.models.decoder import Decoder
from inference.models.loader import load_decoder
from inference.protocol import TokenLogprob
from inference.sampler import sample
from sgmv import Plan


class TorchRunner:
    """A :class:`~inference.core.step.Runner`. Build one with :meth:`load`."""

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
    ) -> None:
        self.block_size, self.num_blocks = attention.block_size, attention.num_blocks
        self.num_slots, self.max_model_len = num_slots, max_model_len
        self.vocab_size = decoder.config.vocab_size
        self.eos_token_ids = eos_token_ids
        # KV that other weights computed is other KV: their name is part of every cache key, and of every answer's tag.
        self.kv_dtype = str(dtype).removeprefix("torch.") + ("" if weights == "full" else f"-{weights}")
        self._decoder, self._attention, self._model_dir = decoder, attention, model_dir
        self._slots = AdapterSlots(decoder.sites, num_slots)
        self._device, self._dtype = device, dtype

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        num_blocks: int,
        block_size: int = 16,
        num_slots: int,
        max_model_len: int,
        threads: int | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        weights: str = "full",
    ) -> TorchRunner:
        """Load a registered model.

        :param num_blocks: of the KV pool, shared by all sequences.
        :param threads: torch's threads for one operation; ``None`` leaves torch's choice. Process-wide.
        :param dtype: of weights, KV and computation. :param device: see :func:`inference.device.choose` for both.
        :param weights: how the linears hold theirs, see :func:`inference.models.linear.make_linear`.
        :raises ConfigError: a size is out of range, a file is missing, or the model is not supported.
        """
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size), ("max_model_len", max_model_len)):
            if value < 1:
                raise ConfigError(f"{name} has to be at least 1, not {value}")
        if num_slots < 0:
            raise ConfigError(f"num_slots cannot be negative ({num_slots})")
        place, kind = choose(device, dtype)
        if threads is not None:
            torch.set_num_threads(threads)
        decoder = load_decoder(model_dir, positions=max_model_len, device=place, dtype=kind, held=weights)
        config = decoder.config
        if max_model_len > config.max_position:
            raise ConfigError(f"max_model_len {max_model_len} exceeds the model's {config.max_position}")
        attention = make_attention(config, num_blocks=num_blocks, block_size=block_size, device=place, dtype=kind)
        return cls(
            decoder,
            attention,
            model_dir=model_dir,
            num_slots=num_slots,
            max_model_len=max_model_len,
            eos_token_ids=_end_tokens(model_dir),
            device=place,
            dtype=kind,
            weights=weights,
        )

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        results: list[Sampled | None] = [None] * len(rows)
        if not rows:
            return results
        # Rows lie as the adapters' operands do, the base's first, so that the adapters' products need no gather.
        ranks = self._slots.order()
        order = sorted(range(len(rows)), key=lambda index: (ranks.get(rows[index].slot, -1), rows[index].slot))
        try:
            with torch.inference_mode():
                found = self._step([rows[index] for index in order])
        except RuntimeError as error:
            raise InferenceError(f"the device failed in a step: {error}") from error
        for index, result in zip(order, found, strict=True):
            results[index] = result
        return results

    def read_adapter(self, directory: Path) -> HostAdapter:
        return read_adapter(directory, self._decoder.config, Checkpoint(self._model_dir), self._dtype)

    def adapter_bytes(self, adapter: object) -> int:
        if not isinstance(adapter, HostAdapter):
            raise TypeError(f"not what read_adapter returned: {type(adapter).__name__}")
        return adapter.held_bytes

    def load_adapter(self, slot: int, adapter: object) -> None:
        if not isinstance(adapter, HostAdapter):
            raise TypeError(f"not what read_adapter returned: {type(adapter).__name__}")
        self._slots.load(slot, adapter)

    def clear_slot(self, slot: int) -> None:
        self._slots.clear(slot)

    def _step(self, rows: list[Row]) -> list[Sampled | None]:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for row in rows:
            count = len(row.tokens)
            tokens.extend(row.tokens)
            positions.extend(range(row.start, row.start + count))
            slots.extend([row.slot] * count)
        hidden = self._decoder.forward(
            torch.tensor(tokens, device=self._device),
            torch.tensor(positions, device=self._device),
            Plan(slots),
            self._attention,
            self._attention.begin(rows),
        )
        results = self._sample(hidden, rows)
        begin = 0
        for index, row in enumerate(rows):
            if row.prompt_logprobs is not None:
                result = results[index] or Sampled([])
                result.prompt_logprobs = self._score_prompt(hidden, begin, row, row.prompt_logprobs)
                results[index] = result
            begin += len(row.tokens)
        return results

    def _sample(self, hidden: Tensor, rows: list[Row]) -> list[Sampled | None]:
        """A token after the last known one of each row with ``params``, and after each guess that was right."""
        places: list[int] = []  # of ``hidden``
        slots: list[int] = []
        draws: list[Row] = []
        end = 0
        for row in rows:
            end += len(row.tokens)
            if row.params is not None:
                places.extend(range(end - 1 - row.draft, end))
                slots.extend([row.slot] * (row.draft + 1))
                draws.extend(_draws(row))
        results: list[Sampled | None] = [None] * len(rows)
        if not draws:
            return results
        chosen, logprobs, late = self._choose(self._logits(hidden, places, slots), draws)
        at = 0
        for index, row in enumerate(rows):
            if row.params is None:
                continue
            count = 0 if at in late else _accepted(row, chosen[at : at + 1 + row.draft])
            taken = slice(at, at + count)
            results[index] = Sampled(
                chosen[taken],
                None if row.params.logprobs is None else [logprobs[draw] for draw in range(at, at + count)],
            )
            at += 1 + row.draft
        return results

    def _choose(self, logits: Tensor, draws: list[Row]) -> tuple[list[int], dict[int, TokenLogprob], set[int]]:
        """A token for each draw, the log-probabilities of those that ask for them, and which came to nothing."""
        tops = {
            draw: row.params.logprobs
            for draw, row in enumerate(draws)
            if row.params is not None and row.params.logprobs is not None
        }
        raw = logits[list(tops)] if tops else None  # a copy: sampling writes to the logits
        late = apply_masks(logits, draws)
        chosen = sample(logits, draws, self.eos_token_ids)
        if raw is None:
            return chosen, {}, late
        found = token_logprobs(raw, [chosen[draw] for draw in tops], list(tops.values()))
        return chosen, dict(zip(tops, found, strict=True)), late

    def _score_prompt(self, hidden: Tensor, begin: int, row: Row, top: int) -> list[TokenLogprob]:
        """The prompt's tokens that follow this chunk's; ``hidden[begin]`` is the chunk's first."""
        targets = row.prompt[row.start + 1 : row.start + 1 + len(row.tokens)]
        size = slice_rows(self.vocab_size)
        found: list[TokenLogprob] = []
        for at in range(0, len(targets), size):
            part = targets[at : at + size]
            logits = self._logits(hidden, list(range(begin + at, begin + at + len(part))), [row.slot] * len(part))
            found += token_logprobs(logits, part, [top] * len(part))
        return found

    def _logits(self, hidden: Tensor, places: list[int], slots: list[int]) -> Tensor:
        """``[len(places), vocab]``, float32, the caller's own."""
        if len(places) != len(hidden):
            hidden = hidden.index_select(0, torch.tensor(places, device=self._device))
        return self._decoder.logits(hidden, slots).float()


def _draws(row: Row) -> list[Row]:
    """The row as it is at each position to sample at: those after a guess see the guess as generated."""
    if not row.draft:
        return [row]
    guesses = list(row.tokens[-row.draft :])
    return [replace(row, output=[*row.output, *guesses[:count]]) for count in range(row.draft + 1)]


def _accepted(row: Row, chosen: list[int]) -> int:
    """How many of the chosen tokens stand: one, and one more for each guess before the first wrong one."""
    count = 1
    for guess, token in zip(row.tokens[len(row.tokens) - row.draft :], chosen, strict=False):
        if guess != token:
            break
        count += 1
    return count


def _end_tokens(model_dir: Path) -> frozenset[int]:
    paths = (model_dir / "config.json", model_dir / "generation_config.json")
    return end_tokens(*(json.loads(path.read_text()) if path.is_file() else {} for path in paths))
