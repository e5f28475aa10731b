"""``make bench``: our figures beside transformers' and PEFT's, on the same machine, in the same run.

    python tests/bench/run.py [--quick] [--only SECTION ...] [--model DIR] [--out FILE] [--repeats N] [--threads N]

Correct first: greedy tokens of the engine and of the worker are compared with transformers + PEFT before either is
timed. A red comparison ends the run without a figure; so does a ledger that disagrees with what was streamed. Sections
run one after the other, each in processes of its own; every figure is the median of its repeats after a warm-up, its
spread printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from figures import Figures
from gateway_load import Platform
from load import drive
from processes import ROOT
from worker import Setup
from worker_sections import WORKER_SECTIONS
from workload import ADAPTERS, IN_FLIGHT, OUTPUT_TOKENS, PROMPT_TOKENS, RANK

SECTIONS = (
    *("transformers", "peft", "engine", "int8", "worker", "fairness", "prefix", "health", "loads", "memory", "soak"),
    *("gateway", "relay", "admission", "console"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """:param waves: requests per repeat over HTTP, in multiples of 16.
    :param crowd_seconds: how long the tenants of the fairness section send. :param soak: requests of the soak.
    """

    model: Path
    folder: Path
    figures: Figures
    repeats: int
    waves: int
    threads: int
    check_tokens: int
    crowd_seconds: float
    soak: int

    @property
    def adapters(self) -> Path:
        return self.folder / "adapters"

    @property
    def expected(self) -> Path:
        """What transformers + PEFT generate for each prompt alone; :func:`measure` writes it."""
        return self.folder / "expected.json"

    def script(self, name: str, *arguments: str) -> Any:
        """Run a script beside this one in a process of its own; its last line of output is JSON."""
        argv = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            raise SystemExit(f"{name} {' '.join(arguments)} failed\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def torch_script(self, name: str, *arguments: str) -> Any:
        common = ["--model", str(self.model), "--adapters", str(self.adapters), "--threads", str(self.threads)]
        return self.script(name, *arguments, *common)

    def say(self, text: str) -> None:
        print(f"· {text}", file=sys.stderr, flush=True)


def baseline(run: Run, task: str) -> None:
    run.say(f"{task}: static batches of {IN_FLIGHT}")
    seconds = run.torch_script("reference", task, "--repeats", str(run.repeats))
    name = "transformers_base" if task == "transformers" else "peft_8_adapters"
    run.figures.add(name, "tok/s", [IN_FLIGHT * OUTPUT_TOKENS / second for second in seconds])


def engine(run: Run) -> None:
    run.say("engine: steps without HTTP or scheduling")
    times = run.torch_script("engine_steps", "--repeats", str(run.repeats), "--expected", str(run.expected))
    for name, baseline_name in (
        ("step_16_rows_base", None),
        ("step_16_rows_8_adapters", "step_16_rows_base"),
        ("step_1_row_base", None),
        ("prefill_256_tokens_base", None),
    ):
        run.figures.add(name, "ms", times[name], baseline_name)


def int8(run: Run) -> None:
    run.say("int8: steps in turns with fp32's, and a text's tokens predicted by both")
    arguments = ("--model", str(run.model), "--threads", str(run.threads), "--repeats", str(run.repeats))
    found = run.script("quality", *arguments)
    run.figures.add("int8_fp32_step_16_rows", "ms", found["step_16_rows_fp32"])
    run.figures.add("int8_step_16_rows", "ms", found["step_16_rows_int8"], "int8_fp32_step_16_rows")
    run.figures.add("int8_fp32_perplexity", "", [found["perplexity_fp32"]])
    run.figures.add("int8_perplexity", "", [found["perplexity_int8"]], "int8_fp32_perplexity")
    run.figures.add("int8_top1_agreement", "%", [100 * found["top1_agreement"]])


def admission(run: Run) -> None:
    run.say("admission: admit + settle, 16 clients, a durable PostgreSQL of its own")
    folder = run.folder / "admission"
    rates = run.script("admission", "--model", str(run.model), "--folder", str(folder), "--repeats", str(run.repeats))
    for name, repeats in rates.items():
        run.figures.add(f"admit_settle_{name}", "requests/s", repeats)


def console(run: Run) -> None:
    run.say("console: every page with 1,000,000 requests, 10,000 adapters and 1,000 tenants in a database of their own")
    arguments = ["--model", str(run.model), "--folder", str(run.folder / "console")]
    arguments += ["--requests", "20000", "--repeats", "1"] if run.repeats == 1 else []
    found = run.script("console_pages", *arguments)
    for name, repeats in found.items():
        run.figures.add(f"page_{name}", "ms", [1000 * second for second in repeats])
    pages = {name: statistics.median(repeats) for name, repeats in found.items() if "format=" not in name}  # no files
    slow = {name: seconds for name, seconds in pages.items() if seconds > 0.3}
    run.figures.add("pages_beyond_300_ms", "", [len(slow)])
    for name, seconds in sorted(slow.items(), key=lambda item: -item[1]):
        run.say(f"slower than 300 ms: {name}, {1000 * seconds:.0f} ms")


def gateway(run: Run) -> None:
    run.say("platform: PostgreSQL, Celery, worker and gateway in a data directory of their own")
    with Platform(run.model, run.adapters, run.folder, run.threads) as loraplex:
        load_gateway(run, loraplex)


def relay(run: Run) -> None:
    run.say("relay: one gateway process between streams and a worker that only counts; then 1,000 streams at once")
    arguments = ("--model", str(run.model), "--folder", str(run.folder / "relay"), "--repeats", str(run.repeats))
    found = run.script("gateway_relay", *arguments)
    units = {"added_ttft": "ms", "tokens_per_cpu": "tok/CPU-s", "crowd_kib": "KiB", "crowd_cpu": "%"}
    for name, repeats in found.items():
        unit = next((unit for start, unit in units.items() if name.startswith(start)), "")
        run.figures.add(f"relay_{name}", unit, repeats)


def load_gateway(run: Run, loraplex: Platform) -> None:
    sent = 0
    for name, mixed, against in (
        ("gateway_base", False, "worker_base"),
        ("gateway_8_adapters", True, "worker_8_adapters"),
    ):
        run.say(f"{name}: {run.repeats} × {run.waves * IN_FLIGHT} requests, {IN_FLIGHT} in flight")
        loads = []
        for number in range(run.repeats + 1):
            waves = run.waves if number else 1  # the first only warms up
            loads.append(asyncio.run(drive(loraplex.url, loraplex.round(2 * number + mixed, waves, mixed))))
        sent += sum(answer.tokens for load in loads for answer in load.answers)
        loads = loads[1:]
        run.figures.add(name, "tok/s", [load.tokens_per_second for load in loads], against)
        run.figures.add(
            f"{name}_ttft_p50", "ms", [1000 * load.first_token_p50 for load in loads], f"{against}_ttft_p50"
        )
    if (billed := loraplex.billed_tokens()) != sent:
        raise SystemExit(f"{sent} tokens were streamed, {billed} are in the ledger: no figures")
    run.say(f"ledger: {sent} tokens streamed, {billed} billed")


def machine(threads: int) -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    versions = " ".join(f"{package} {version(package)}" for package in ("torch", "transformers", "peft"))
    load = f", load before the run {os.getloadavg()[0]:.1f}"
    return f"{name}, {os.cpu_count()} cores, {threads} threads{load}; Python {platform.python_version()} {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure loraplex beside transformers and PEFT.")
    parser.add_argument("--model", type=Path, default=ROOT / "var/models/smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, default=ROOT / "var/bench.json")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument(
        "--quick", action="store_true", help="one short repeat of each: a smoke test, not a measurement"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--soak", type=int, default=0, help="requests of the soak (default: 2,000, quick: 300)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if not (options.model / "fingerprint").is_file():
        parser.error(
            f"--model: {options.model} is no model store directory (make one: python -m inference.model_store)"
        )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that every server is stopped
    figures = Figures()
    note = machine(options.threads)
    with tempfile.TemporaryDirectory(prefix="loraplex-bench-") as folder:
        run = Run(
            model=options.model.resolve(),
            folder=Path(folder),
            figures=figures,
            repeats=1 if options.quick else options.repeats,
            waves=1 if options.quick else 3,
            threads=options.threads,
            check_tokens=4 if options.quick else 16,
            crowd_seconds=15.0 if options.quick else 150.0,
            soak=options.soak or (300 if options.quick else 2000),
        )
        measure(run, options.only)
    print(note)
    print(f"{IN_FLIGHT} in flight, {PROMPT_TOKENS} prompt and {OUTPUT_TOKENS} output tokens each, greedy, fp32")
    print(f"{ADAPTERS} adapters of rank {RANK} on every linear layer")
    print(figures.table())
    figures.write(options.out)
    print(f"written to {options.out}")


def measure(run: Run, sections: list[str]) -> None:
    if set(sections) - {"transformers", "admission", "relay", "int8", "memory", "console"}:
        run.say("adapters: eight random ones, rank 8 on every linear layer")
        run.torch_script("reference", "adapters")
    if {"engine", "worker"} & set(sections):
        run.say(f"reference for the exactness check: {IN_FLIGHT} prompts alone, {run.check_tokens} tokens each")
        run.expected.write_text(json.dumps(run.torch_script("reference", "expect", "--tokens", str(run.check_tokens))))
    for task in ("transformers", "peft"):
        if task in sections:
            baseline(run, task)
    if "engine" in sections:
        engine(run)
    if "int8" in sections:
        int8(run)
    beside = [measure for name, measure in WORKER_SECTIONS.items() if name in sections]
    if beside:
        setup = Setup.make(run.model, run.adapters, run.folder)
        for section in beside:
            section(run, setup)
    if "gateway" in sections:
        gateway(run)
    if "relay" in sections:
        relay(run)
    if "admission" in sections:
        admission(run)
    if "console" in sections:
        console(run)


if __name__ == "__main__":
    main()
