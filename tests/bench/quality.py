"""What int8 weights cost in quality and save in time, against fp32 in the same process. Prints JSON on the last line.

    python tests/bench/quality.py --model DIR --threads N [--repeats N] [--text FILE]

Quality: every token of a committed text, in windows of 512 that start afresh, is predicted by both from the same tokens
before it. Perplexity is exp of the mean negative log-probability of the text's own tokens; top-1 agreement is the share
of places at which both find the same token most likely. Time: a decode step of sixteen rows, the two taking turns.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path

from tokenizers import Tokenizer
from workload import IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS

from inference.core.step import Row
from inference.protocol import SamplingParams
from inference.runner import TorchRunner

TEXT = Path(__file__).with_name("data") / "prose.txt"
WINDOW = 512
BLOCK_SIZE = 16
TABLE = WINDOW // BLOCK_SIZE
STEPS = 20
Scores = list[tuple[float, int]]


def predictions(runner: TorchRunner, tokens: list[int]) -> Scores:
    """For each token but the windows' first: its log-probability, and the most likely token in its place."""
    found: Scores = []
    for start in range(0, len(tokens) - 1, WINDOW):
        window = tokens[start : start + WINDOW]
        row = Row(window, 0, range(TABLE), prompt=window, prompt_logprobs=1)
        result = runner.run([row])[0]
        assert result is not None
        found += [(each.logprob, each.top[0][0]) for each in result.prompt_logprobs]
    return found


def perplexity(scores: Scores) -> float:
    return math.exp(-statistics.fmean(logprob for logprob, _ in scores))


class Decoding:
    """Sixteen sequences that a runner takes one step further at a time."""

    def __init__(self, runner: TorchRunner, prompt: list[int]) -> None:
        self._runner, self._prompt = runner, prompt
        self._params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
        self._step(prompt, 0)

    def _step(self, tokens: list[int], start: int) -> None:
        self._runner.run(
            [
                Row(tokens, start, range(i * TABLE, (i + 1) * TABLE), params=self._params, prompt=self._prompt)
                for i in range(IN_FLIGHT)
            ]
        )

    def milliseconds(self, number: int) -> float:
        started = time.perf_counter()
        self._step([self._prompt[number % len(self._prompt)]], len(self._prompt) + number % OUTPUT_TOKENS)
        return 1000 * (time.perf_counter() - started)


def steps(runners: dict[str, TorchRunner], prompt: list[int], repeats: int) -> dict[str, list[float]]:
    """Median milliseconds of a step, once for each repeat."""
    decoding = {name: Decoding(runner, prompt) for name, runner in runners.items()}
    found: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(repeats):
        times: dict[str, list[float]] = {name: [] for name in runners}
        for number in range(STEPS):
            for name, each in decoding.items():
                times[name].append(each.milliseconds(number))
        for name, own in times.items():
            found[name].append(statistics.median(own))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--text", type=Path, default=TEXT)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    tokens = tokenizer.encode(options.text.read_text(encoding="utf-8"), add_special_tokens=False).ids
    runners = {
        weights: TorchRunner.load(
            options.model,
            num_blocks=IN_FLIGHT * TABLE,
            block_size=BLOCK_SIZE,
            num_slots=0,
            max_model_len=WINDOW,
            threads=options.threads,
            dtype="float32",
            weights=weights,
        )
        for weights in ("full", "int8")
    }
    full, int8 = (predictions(runner, tokens) for runner in runners.values())
    times = steps(runners, tokens[:PROMPT_TOKENS], options.repeats)
    print(
        json.dumps(
            {
                "tokens": len(full),
                "perplexity_fp32": perplexity(full),
                "perplexity_int8": perplexity(int8),
                "top1_agreement": statistics.fmean(a[1] == b[1] for a, b in zip(full, int8, strict=True)),
                "step_16_rows_fp32": times["full"],
                "step_16_rows_int8": times["int8"],
            }
        )
    )


if __name__ == "__main__":
    main()
