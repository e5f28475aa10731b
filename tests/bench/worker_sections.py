"""The sections that measure one worker over HTTP, each in a worker process of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import busy_health
import fairness
import loads
import prefix
import soak
from load import drive, percentile
from worker import Setup, check_worker
from workload import IN_FLIGHT

if TYPE_CHECKING:
    from run import Run


def worker(run: Run, setup: Setup) -> None:
    with setup.process(run.folder, run.threads) as process:
        url = process.wait_for("ready ").split()[1]
        run.say(asyncio.run(check_worker(url, setup, json.loads(run.expected.read_text()))))
        _loaded(run, setup, url, "worker_base", "transformers_base", mixed=False)
        _loaded(run, setup, url, "worker_8_adapters", "peft_8_adapters", mixed=True)
    rows = run.figures.rows
    share = rows["worker_8_adapters"].value / rows["worker_base"].value
    run.figures.add("worker_8_adapters_of_base", "%", [100 * share])
    with setup.process(run.folder, run.threads, "--weights", "int8") as process:
        url = process.wait_for("ready ").split()[1]
        _loaded(run, setup, url, "worker_int8", "worker_base", mixed=False)


def _loaded(run: Run, setup: Setup, url: str, name: str, against: str, *, mixed: bool) -> None:
    run.say(f"{name}: {run.repeats} × {run.waves * IN_FLIGHT} requests, {IN_FLIGHT} in flight")
    loads = []
    for number in range(run.repeats + 1):
        waves = run.waves if number else 1  # the first only warms up
        loads.append(asyncio.run(drive(url, setup.round(2 * number + mixed, waves, mixed))))
    loads = loads[1:]
    run.figures.add(name, "tok/s", [load.tokens_per_second for load in loads], against)
    run.figures.add(f"{name}_ttft_p50", "ms", [1000 * load.first_token_p50 for load in loads])
    run.figures.add(f"{name}_itl_p50", "ms", [1000 * load.gap_p50 for load in loads])


def crowd(run: Run, setup: Setup) -> None:
    """95th percentile of the quiet tenant's time to first token; the ratio should not exceed 1.5."""
    for name, times, rows in (
        ("quiet_alone", 0, fairness.ROWS // 2),
        ("quiet_in_crowd", fairness.TIMES, fairness.ROWS),
    ):
        run.say(f"fairness: {name}, {run.crowd_seconds:g} s, {rows} rows")
        with setup.process(run.folder, run.threads, "--max-running", str(rows)) as process:
            url = process.wait_for("ready ").split()[1]
            asyncio.run(fairness.crowd(url, setup, seconds=3, times=0, seed=0))  # warms up
            quiet, loud = asyncio.run(fairness.crowd(url, setup, seconds=run.crowd_seconds, times=times, seed=1))
        baseline = "quiet_alone" if times else None
        for share, label in ((0.5, "p50"), (0.95, "p95")):
            against = f"{baseline}_ttft_{label}" if baseline else None
            run.figures.add(f"{name}_ttft_{label}", "ms", [1000 * percentile(quiet.first, share)], against)
        if times:
            said = f"{len(quiet.first)} answers to the quiet tenant, {len(loud.first)} to the loud one"
            run.say(f"fairness: {said}, {loud.refused} of whose requests were refused")


def prefix_hit(run: Run, setup: Setup) -> None:
    """The ratio should not exceed 0.15."""
    run.say(f"prefix: {prefix.PROMPT} tokens, {prefix.CACHED} of them cached, beside none")
    with setup.process(run.folder, run.threads) as process:
        url = process.wait_for("ready ").split()[1]
        cold, cached = asyncio.run(prefix.first_tokens(url, setup, max(run.repeats, 2)))
    run.figures.add("prefix_cold_ttft", "ms", [1000 * seconds for seconds in cold])
    run.figures.add("prefix_cached_ttft", "ms", [1000 * seconds for seconds in cached], "prefix_cold_ttft")


def health(run: Run, setup: Setup) -> None:
    """The 99th percentile should stay below 50 ms."""
    run.say(f"health: asked all the while that {busy_health.IN_FLIGHT} streams are served")
    with setup.process(run.folder, run.threads) as process:
        url = process.wait_for("ready ").split()[1]
        seconds = asyncio.run(busy_health.seconds_under_load(url, setup, run.waves))
    for share, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
        run.figures.add(f"health_busy_{label}", "ms", [1000 * percentile(seconds, share)])


def adapter_loads(run: Run, setup: Setup) -> None:
    """Gaps between tokens while adapters are loaded, less those without: a step's time should be the most."""
    for source, options in (("host", ()), ("disk", ("--host-adapter-mb", "0"))):
        run.say(f"loads: {loads.STEADY} streams beside adapters that come from {source}")
        with setup.process(run.folder, run.threads, "--slots", str(loads.SLOTS), *options) as process:
            url = process.wait_for("ready ").split()[1]
            found: dict[bool, list[loads.Measured]] = {False: [], True: []}
            for number in range(run.repeats + 1):
                for loading in (False, True):
                    found[loading].append(asyncio.run(loads.gaps(url, setup, loading=loading, seed=number)))
        for loading, label in ((False, "staying"), (True, "loading")):
            name, rounds = f"gap_{source}_{label}", found[loading][1:]
            run.say(
                f"loads: {name}: {sum(one.loads for one in rounds)} loads, {sum(one.asked for one in rounds)} requests"
            )
            for share, of in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
                against = f"gap_{source}_staying_{of}" if loading else None
                run.figures.add(f"{name}_{of}", "ms", [1000 * percentile(one.gaps, share) for one in rounds], against)


def memory(run: Run, setup: Setup) -> None:
    """What the process grows by, beside the bytes of its weights and its KV cache; the ratio should not exceed 1.05."""
    run.say("memory: a model and its cache, loaded and written to")
    arguments = ("--model", str(setup.model_dir), "--threads", str(run.threads))
    measured = run.script("memory", *arguments)
    run.figures.add("memory_computed", "MB", [(measured["weights"] + measured["kv"]) / 1e6])
    run.figures.add("memory_grown", "MB", [measured["grown"] / 1e6], "memory_computed")


def long_run(run: Run, setup: Setup) -> None:
    """Memory after thousands of requests beside memory before."""
    run.say(f"soak: {run.soak} short requests, some dropped, some wrong, more adapters than slots")
    with setup.process(run.folder, run.threads, "--slots", str(soak.SLOTS)) as process:
        measured = soak.soak(process, setup, run.soak)
    run.say(f"soak: {measured['outcomes']} in {measured['seconds']} s")
    for name in ("front", "core"):
        run.figures.add(f"soak_{name}_before", "MB", [measured[name][0]])
        run.figures.add(f"soak_{name}_after", "MB", [measured[name][-1]], f"soak_{name}_before")


WORKER_SECTIONS: dict[str, Callable[[Run, Setup], None]] = {
    "worker": worker,
    "fairness": crowd,
    "prefix": prefix_hit,
    "health": health,
    "loads": adapter_loads,
    "memory": memory,
    "soak": long_run,
}
