"""Runs a :class:`~inference.runner.TorchRunner` by hand, and compares it with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inference.core.step import Row
from inference.protocol import SamplingParams
from inference.runner import TorchRunner

GREEDY = SamplingParams(temperature=0.0, max_tokens=1024)


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference against the largest magnitude."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def logits_of(
    runner: TorchRunner, tokens: Sequence[int], chunks: Sequence[int], blocks: Sequence[int], slot: int = -1
) -> torch.Tensor:
    """The logits of every position of ``tokens``, computed in prefill chunks of these sizes."""
    assert sum(chunks) == len(tokens)
    seen: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []
    forward = runner._decoder.forward

    def record(*arguments: Any) -> torch.Tensor:
        seen.append(forward(*arguments))
        return seen[-1]

    runner._decoder.forward = record  # type: ignore[method-assign,assignment]
    try:
        start = 0
        for size in chunks:
            runner.run([Row(tokens[start : start + size], start, blocks, slot)])
            with torch.inference_mode():
                logits.append(runner.logits(seen.pop(), range(size), [slot] * size))
            start += size
    finally:
        runner._decoder.forward = forward  # type: ignore[method-assign]
    return torch.cat(logits)


class Stream:
    """One request: fed by the caller step by step, so that several can share a batch.

    :param chunks: sizes of the prompt's prefill chunks. :param cached: prompt tokens whose KV ``blocks`` already hold.
    """

    def __init__(
        self, prompt: Sequence[int], chunks: Sequence[int], blocks: Sequence[int], *, slot: int = -1, cached: int = 0
    ) -> None:
        assert cached + sum(chunks) == len(prompt)
        self.prompt, self.chunks, self.blocks = list(prompt), list(chunks), list(blocks)
        self.slot, self.done = slot, cached
        self.output: list[int] = []

    def row(self) -> Row:
        if self.done < len(self.prompt):
            tokens = self.prompt[self.done : self.done + self.chunks.pop(0)]
        else:
            tokens = self.output[-1:]
        last = self.done + len(tokens) >= len(self.prompt)
        row = Row(
            tokens, self.done, self.blocks, self.slot, GREEDY if last else None, output=self.output, prompt=self.prompt
        )
        self.done += len(tokens)
        return row


def run_greedy(runner: TorchRunner, streams: Sequence[Stream], count: int) -> None:
    """Step all streams together until each has ``count`` tokens of output."""
    while active := [stream for stream in streams if len(stream.output) < count]:
        for stream, sampled in zip(active, runner.run([stream.row() for stream in active]), strict=True):
            if sampled is not None:  # a broken one goes on here, to see that nobody else is touched by it
                stream.output.extend([0] if sampled.broken else sampled.tokens)


def reference_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0]


def clear_greedy(model: Any, length: int, count: int) -> tuple[list[int], list[int]]:
    """A prompt of random tokens, and what transformers generates from it.

    The first prompt of a fixed series at which the two best tokens are never too close to tell them apart in float32.
    """
    for seed in range(50):
        prompt = torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(seed))[None]
        with torch.inference_mode():
            whole = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count, eos_token_id=-1
            )
            logits = model(whole[:, :-1]).logits[0, length - 1 :]
        best, second = logits.topk(2, dim=-1).values.unbind(-1)
        if float((best - second).min()) > 1e-4 * float(logits.abs().max()):
            return prompt[0].tolist(), whole[0, length:].tolist()
    raise AssertionError("no prompt has a clear continuation")
