"""How what the core is, and what happened to requests, travels to the front."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from inference.core.batch import Progress
from inference.core.messages import Ready, Reply
from inference.core.step import Runner
from inference.errors import InferenceError
from inference.protocol import TokenLogprob


def ready(runner: Runner, max_model_len: int) -> Ready:
    return Ready(
        block_size=runner.block_size,
        num_blocks=runner.num_blocks,
        num_slots=runner.num_slots,
        max_model_len=max_model_len,
        vocab_size=runner.vocab_size,
        eos_token_ids=sorted(runner.eos_token_ids),
        kv_dtype=runner.kv_dtype,
    )


def gained(progress: Progress) -> list[Any]:
    """An entry of :attr:`Step.gained <inference.core.messages.Step>`."""
    sequence = progress.sequence
    entry = [sequence.request_id, progress.tokens, progress.finish, sequence.cached_tokens]
    if progress.logprobs is not None or progress.prompt_logprobs is not None:
        entry += [_wire(progress.logprobs), _wire(progress.prompt_logprobs)]
    return entry


def failed(request_id: str, error: InferenceError) -> list[Any]:
    """An entry of :attr:`Step.failed <inference.core.messages.Step>`."""
    return [request_id, *_named(error), getattr(error, "retry_after", None)]


def reply(call: int, error: InferenceError | None) -> Reply:
    return Reply(call) if error is None else Reply(call, *_named(error))


def _wire(logprobs: Seq[TokenLogprob] | None) -> list[Any] | None:
    return None if logprobs is None else [entry.wire() for entry in logprobs]


def _named(error: InferenceError) -> tuple[str, str, str | None]:
    """Its class, its sentence, and the field it is about."""
    field = getattr(error, "param", None) or getattr(error, "field", None)
    return type(error).__name__, str(error), field
