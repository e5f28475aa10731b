"""The clock's side of the same question, with a real decoder: does the time to the first token give a cache away?"""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from inference.core.limits import Limits
from inference.core.prefix_cache import PrefixCache
from inference.core.residency import Residency
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.core.shares import ShareRules
from inference.protocol import SamplingParams
from inference.runner import TorchRunner

TRIALS = 300
PROMPT_TOKENS = 200


class Worker:
    """A core on a real runner, one request at a time."""

    def __init__(self, model: Path) -> None:
        self.runner = TorchRunner.load(model, num_blocks=256, num_slots=0, max_model_len=512, threads=1)
        residency = Residency(
            0,
            fetch=lambda digest: Future(),
            load=self.runner.load_adapter,
            clear=self.runner.clear_slot,
            wake=lambda: None,
        )
        cache = PrefixCache(256, self.runner.block_size, base="b", kv_dtype="f", rules=ShareRules(64))
        self.scheduler = Scheduler(Limits(512), cache, residency, eos_token_ids=frozenset())
        self.count = 0

    def first_token(self, prompt: list[int], namespace: str) -> float:
        """Seconds from the request to its first and only token."""
        self.count += 1
        params = SamplingParams(max_tokens=1, temperature=0.0)
        began = time.perf_counter()
        self.scheduler.add(Sequence(str(self.count), prompt, params, 0, namespace, namespace, None))
        while self.scheduler.live:
            batch = self.scheduler.schedule()
            self.scheduler.postprocess(batch, self.runner.run(batch.rows))
        return time.perf_counter() - began


def auc(known: list[float], unknown: list[float]) -> tuple[float, float, float]:
    """How often a known prompt is faster than an unknown one, and its 95 % interval (bootstrap over trials)."""
    faster = (np.array(known)[:, None] < np.array(unknown)[None, :]).astype(float)
    rng = np.random.default_rng(0)
    size = len(known)
    samples = [faster[np.ix_(rng.integers(0, size, size), rng.integers(0, size, size))].mean() for _ in range(1000)]
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(faster.mean()), float(low), float(high)


def measure(worker: Worker, rng: random.Random, victim: str) -> tuple[float, float, float]:
    """An attacker times prompts that ``victim`` has just asked and prompts that nobody did, in random order."""
    known, unknown = [], []
    for _ in range(TRIALS):
        secret, other = ([rng.randrange(3, 300) for _ in range(PROMPT_TOKENS)] for _ in range(2))
        worker.first_token(secret, victim)
        pair = [(secret, known), (other, unknown)]
        rng.shuffle(pair)
        for prompt, times in pair:
            times.append(worker.first_token(prompt, "attacker"))
    return auc(known, unknown)


@pytest.mark.slow
@pytest.mark.alone
def test_the_time_to_the_first_token_tells_nothing(tiny_model_dir: Path) -> None:
    rng, worker = random.Random(1), Worker(tiny_model_dir)
    for _ in range(20):  # the first steps are slower
        worker.first_token([rng.randrange(3, 300) for _ in range(PROMPT_TOKENS)], "warm")
    area, low, _ = measure(worker, rng, "attacker")
    assert low > 0.8, f"the clock does not even see the attacker's own cache: AUC {area:.3f}"
    # One interval in twenty misses 0.5 although there is nothing to see; two in a row do not.
    intervals = [measure(worker, rng, "victim")]
    if not intervals[0][1] <= 0.5 <= intervals[0][2]:
        intervals.append(measure(worker, rng, "victim"))
    print("own cache: AUC", round(area, 3), "· a stranger's:", [tuple(round(x, 3) for x in one) for one in intervals])
    assert intervals[-1][1] <= 0.5 <= intervals[-1][2], intervals
