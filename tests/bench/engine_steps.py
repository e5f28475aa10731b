"""Milliseconds of single steps of the runner: no HTTP, no scheduler. One JSON object on the last line of stdout.

python tests/bench/engine_steps.py --model DIR --adapters DIR --threads N --expected FILE [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from exactness import compare
from workload import ADAPTERS, IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS, check_prompts

from inference.core.step import BASE_SLOT, Row, Sampled
from inference.protocol import SamplingParams
from inference.runner import TorchRunner

BLOCKS_PER_ROW = 32
STEPS = 20


def tokens(results: list[Sampled | None]) -> list[int]:
    """The one token that each row gained."""
    return [result.tokens[0] for result in results if result is not None]


class Sequences:
    """Sixteen sequences of one length, each with blocks of its own."""

    def __init__(self, runner: TorchRunner, prompt: list[int]) -> None:
        self.runner = runner
        self.prompt = (prompt * PROMPT_TOKENS)[:PROMPT_TOKENS]
        self.params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)

    def row(self, index: int, ids: list[int], start: int, slot: int) -> Row:
        blocks = range(index * BLOCKS_PER_ROW, (index + 1) * BLOCKS_PER_ROW)
        return Row(ids, start, blocks, slot, self.params, output=(), prompt=self.prompt, seed=0)

    def decode(self, count: int, mixed: bool, repeats: int) -> list[float]:
        """Median milliseconds of a step that decodes ``count`` rows, once for each repeat."""
        slots = [index % ADAPTERS if mixed else BASE_SLOT for index in range(count)]
        start = len(self.prompt)
        last = tokens(self.runner.run([self.row(i, self.prompt, 0, slot) for i, slot in enumerate(slots)]))
        times = []
        for number in range(repeats * STEPS + 2):
            rows = [self.row(i, [token], start + number % OUTPUT_TOKENS, slots[i]) for i, token in enumerate(last)]
            started = time.perf_counter()
            last = tokens(self.runner.run(rows))
            times.append(1000 * (time.perf_counter() - started))
        return [statistics.median(times[2 + i * STEPS : 2 + (i + 1) * STEPS]) for i in range(repeats)]

    def prefill(self, length: int, repeats: int) -> list[float]:
        times = []
        for _ in range(repeats + 1):
            prompt = (self.prompt * length)[:length]
            started = time.perf_counter()
            self.runner.run([self.row(0, prompt, 0, BASE_SLOT)])
            times.append(1000 * (time.perf_counter() - started))
        return times[1:]


def greedy(runner: TorchRunner, expected: list[dict[str, Any]]) -> list[list[int]]:
    """What the runner generates for the reference's rows, all in one batch."""
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    slots = [int(row["adapter"][1:]) if row["adapter"] else BASE_SLOT for row in expected]
    fresh = [row["prompt"] for row in expected]
    starts = [0] * len(expected)
    answers: list[list[int]] = [[] for _ in expected]
    for _ in expected[0]["tokens"]:
        rows = []
        for index, known in enumerate(fresh):
            blocks = range(index * BLOCKS_PER_ROW, (index + 1) * BLOCKS_PER_ROW)
            rows.append(Row(known, starts[index], blocks, slots[index], params, answers[index], (), 0))
        for index, token in enumerate(tokens(runner.run(rows))):
            starts[index] += len(fresh[index])
            answers[index].append(token)
            fresh[index] = [token]
    return answers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--expected", type=Path, required=True, help="what reference.py expect printed")
    options = parser.parse_args()
    runner = TorchRunner.load(
        options.model,
        num_blocks=IN_FLIGHT * BLOCKS_PER_ROW,
        num_slots=ADAPTERS,
        max_model_len=BLOCKS_PER_ROW * 16,
        threads=options.threads,
    )
    for slot in range(ADAPTERS):
        runner.load_adapter(slot, runner.read_adapter(options.adapters / f"a{slot}"))
    expected = json.loads(options.expected.read_text())
    compare(expected, greedy(runner, expected))
    sequences = Sequences(runner, check_prompts(options.model)[0])
    print(
        json.dumps(
            {
                "step_16_rows_base": sequences.decode(IN_FLIGHT, mixed=False, repeats=options.repeats),
                "step_16_rows_8_adapters": sequences.decode(IN_FLIGHT, mixed=True, repeats=options.repeats),
                "step_1_row_base": sequences.decode(1, mixed=False, repeats=options.repeats),
                "prefill_256_tokens_base": sequences.prefill(256, options.repeats),
            }
        )
    )


if __name__ == "__main__":
    main()
