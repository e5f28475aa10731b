"""``make bench-gpu``: the engine on random weights of Llama-3-8B's shape, against its byte floor and against PEFT.

    python tests/bench/engine_gpu.py [--device cuda|cpu] [--tiny] [--folder DIR] [--repeats N] [--out FILE.json]

Nothing is downloaded: weights and adapters are drawn, written to a folder that is removed, and read as any model's.
The engine's greedy tokens, adapters mixed in one batch, are held against transformers and PEFT before a figure is
printed. A step's floor is the time that a copy would take of the bytes that the step has to read: weights, distinct
adapters, keys and values. ``base_adds``: a step without adapters while they are loaded, over one before they were;
``N_adapters_add``: over a step without. ``launch_…``: what of a step the host takes, beside the device. What is found
before PEFT's own times is written when the tokens are right. ``--tiny --device cpu`` runs the whole command on a model
of two small layers; its times say nothing. Exit status 1: tokens differ; 2: there is no CUDA device.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from figures import Figures
from gpu_engine import CHOICES, Answer, Engine, Load
from gpu_reference import Reference
from kernel_timing import copy_bandwidth
from random_model import LLAMA_3_8B, TINY, RandomModel, write_model

RANK = 16
FULL = Load(sequences=64, context=512, adapters=(1, 8, 64), prefill=4096, prefill_adapters=8, steps=20, repeats=5)
SMALL = Load(sequences=8, context=24, adapters=(1, 4, 8), prefill=64, prefill_adapters=4, steps=4, repeats=2)


def floor_milliseconds(model: RandomModel, load: Load, adapters: int, bandwidth: float) -> float:
    """Of the middle step that is measured. :param bandwidth: bytes a second of a copy."""
    positions = load.context + 2 + load.steps * load.repeats / 2
    read = model.step_bytes + adapters * model.adapter_bytes + load.sequences * positions * model.token_bytes
    return 1000 * read / bandwidth


def measure_engine(model: RandomModel, load: Load, device: torch.device, figures: Figures) -> list[Answer]:
    """Adds the engine's figures. Its answers, to be checked before any of them is shown."""
    bandwidth = copy_bandwidth(device)
    figures.add("copy", "GB/s", [bandwidth / 1e9])
    engine = Engine(model, load, device)
    figures.add("decode_none_loaded", "ms", engine.decode(0))
    engine.load_adapters()
    answers = engine.answers()
    for adapters in (0, *load.adapters):
        name = named(adapters)
        figures.add(f"floor_{name}", "ms", [floor_milliseconds(model, load, adapters, bandwidth)])
        figures.add(f"decode_{name}", "ms", engine.decode(adapters), f"floor_{name}")
        if engine.launching is not None:
            figures.add(f"launch_{name}", "ms", [engine.launching], f"decode_{name}")
    for choice, params in CHOICES.items():
        figures.add(f"decode_base_{choice}", "ms", engine.decode(0, params), "decode_base")
    base = figures.rows["decode_base"].value
    figures.add("base_adds", "%", [100 * (base / figures.rows["decode_none_loaded"].value - 1)])
    for adapters in load.adapters:
        step = figures.rows[f"decode_{named(adapters)}"].value
        figures.add(f"{named(adapters)}_add", "%", [100 * (step / base - 1)])
    figures.add("prefill_base", "ms", engine.prefill(0))
    figures.add(f"prefill_{named(load.prefill_adapters)}", "ms", engine.prefill(load.prefill_adapters), "prefill_base")
    return answers


def measure_reference(reference: Reference, load: Load, figures: Figures) -> list[str]:
    """Adds PEFT's figures. Which of them have none, and why."""
    missing = []
    for adapters in (0, *load.adapters):
        name = named(adapters)
        try:
            figures.add(f"peft_{name}", "ms", reference.decode(load, adapters), f"decode_{name}")
        except torch.OutOfMemoryError:
            missing.append(f"peft_{name}: no figure, it does not fit into the device's memory")
    return missing


def named(adapters: int) -> str:
    return {0: "base", 1: "1_adapter"}.get(adapters, f"{adapters}_adapters")


def run(options: argparse.Namespace, folder: Path) -> None:
    device, load = torch.device(options.device), SMALL if options.tiny else FULL
    load = replace(load, repeats=options.repeats or load.repeats)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    sizes = TINY if options.tiny else LLAMA_3_8B
    say(f"{load.slots} random adapters of rank {RANK} on all linears of a random model, in {folder}")
    model = write_model(folder, sizes, adapters=load.slots, rank=RANK, dtype=dtype, device=device)
    figures = Figures()
    say("the engine")
    answers = measure_engine(model, load, device, figures)
    gc.collect()  # the engine's memory is the reference's now
    if device.type == "cuda":
        torch.cuda.empty_cache()
    say("transformers and PEFT: the engine's tokens first")
    reference = Reference(model, load.slots, device)
    farthest = reference.check(answers)
    say(f"{len(answers) * load.checked} tokens are theirs (at most {farthest:.2g} standard deviations from the best)")
    figures.write(options.out)  # PEFT's take longer than all of these together
    missing = measure_reference(reference, load, figures)
    print(heading(device, model, load))
    print(figures.table())
    for line in missing:
        print(line)
    figures.write(options.out)
    print(f"written to {options.out}")


def heading(device: torch.device, model: RandomModel, load: Load) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    lines = [
        f"{name}, torch {torch.__version__}, {model.dtype}: {model.step_bytes / 1e9:.3g} GB of weights a step, "
        f"{model.adapter_bytes / 1e6:.3g} MB an adapter",
        f"{load.sequences} sequences of {load.context} tokens and more, greedy; prefill: {load.prefill} tokens in "
        f"{load.prefill_adapters} prompts",
    ]
    if model.config.num_layers == TINY["num_hidden_layers"]:
        lines.append("A TINY MODEL: that the command works is all that these times say")
    return "\n".join(lines)


def say(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The engine on random Llama-3-8B weights, and PEFT beside it.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two small layers: to see that the command works")
    parser.add_argument("--folder", type=Path, help="where the weights are written, 22 GB (default: a temporary one)")
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("var/engine_gpu.json"))
    options = parser.parse_args(argv)
    if options.repeats < 0:
        parser.error(f"--repeats: at least 1, not {options.repeats}")
    if options.folder is not None and not options.folder.is_dir():
        parser.error(f"--folder: {options.folder} is no directory")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("engine_gpu.py: torch sees no CUDA device; --tiny --device cpu tries the command", file=sys.stderr)
        return 2
    if options.device == "cpu" and not options.tiny:
        print("engine_gpu.py: 8B on a CPU takes 32 GB and minutes a step; --tiny with --device cpu", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="loraplex-gpu-", dir=options.folder) as folder:
        run(options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
