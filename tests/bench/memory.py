"""What a model and its KV cache take beside what their numbers take: prints both in bytes as JSON.

    python tests/bench/memory.py --model DIR --threads N

Measured as the growth of this process from a state in which a two-layer model has run, so that libraries, threads and
compiled loops are there already, to one in which every block of the cache has been written.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import sys
import tempfile
from pathlib import Path

from processes import ROOT

sys.path.insert(0, str(ROOT))  # the tests' small model

from inference.core.step import Row
from inference.model_config import ModelConfig
from inference.protocol import SamplingParams
from inference.runner import TorchRunner
from tests.inference.tiny_model import build_tiny_model

BLOCK_SIZE, NUM_BLOCKS, CHUNK = 16, 640, 512
FLOAT_BYTES = 4


def resident() -> int:
    """Bytes of this process in memory, after what is free has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(runner: TorchRunner) -> None:
    """Write every block once."""
    blocks = CHUNK // BLOCK_SIZE
    params = SamplingParams(max_tokens=1, temperature=0.0)
    for first in range(0, runner.num_blocks, blocks):
        table = list(range(first, min(first + blocks, runner.num_blocks)))
        tokens = [5] * (len(table) * BLOCK_SIZE)
        runner.run([Row(tokens, 0, table, params=params, prompt=tokens)])


def computed(model: Path) -> tuple[int, int]:
    """Bytes of (weights, KV) as the shapes give them, fp32."""
    config = ModelConfig.from_json(json.loads((model / "config.json").read_text()))
    weights = sum(math.prod(shape) for shape in config.tensor_shapes().values())
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * BLOCK_SIZE * NUM_BLOCKS
    return weights * FLOAT_BYTES, kv * FLOAT_BYTES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny = build_tiny_model(Path(folder) / "tiny")
        fill(TorchRunner.load(tiny, num_blocks=64, num_slots=0, max_model_len=512, threads=options.threads))
    before = resident()
    runner = TorchRunner.load(
        options.model, num_blocks=NUM_BLOCKS, num_slots=0, max_model_len=2048, threads=options.threads
    )
    loaded = resident()
    fill(runner)
    after = resident()
    weights, kv = computed(options.model)
    print(json.dumps({"weights": weights, "kv": kv, "loaded": loaded - before, "grown": after - before}))


if __name__ == "__main__":
    main()
