"""What one core takes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from inference.core.shares import ShareRules
from inference.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the running batch, of the queue and of each namespace's part of the cache.

    :param max_running: most sequences in one step.
    :param token_budget: most tokens in one step, ≥ ``max_running``.
    :param max_waiting: most queued requests altogether; ``max_waiting_per_tenant`` of one tenant.
    :param host_adapter_bytes: of adapters kept in host memory, beside those on the device.
    :param speculate_tokens: most tokens guessed for one sequence in a step; 0: none.
    """

    max_model_len: int
    max_running: int = 64
    token_budget: int = 512
    max_waiting: int = 1024
    max_waiting_per_tenant: int = 256
    host_adapter_bytes: int = 1024**3
    speculate_tokens: int = 0
    shares: ShareRules = field(default_factory=ShareRules)

    def check_fits(self, prompt: int, max_tokens: int, *, room: int) -> None:
        """Raises :class:`InvalidRequest` for a request that can never run.

        :param room: tokens of KV that one request can always get.
        """
        if not prompt:
            raise InvalidRequest("The prompt is empty", "prompt")
        total = prompt + max_tokens
        if total > self.max_model_len:
            raise InvalidRequest(f"{prompt} prompt tokens and max_tokens {max_tokens} exceed {self.max_model_len}")
        if total - 1 > room:  # the last token generated is never computed, so it needs no position
            raise InvalidRequest(
                f"{prompt} prompt tokens and max_tokens {max_tokens} need {total - 1} tokens of KV cache; "
                f"this worker has {room} for one request",
                "max_tokens",
            )
