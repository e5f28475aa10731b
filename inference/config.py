"""What a worker is told at its start."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.core.shares import ShareRules
from inference.errors import ConfigError

BLOCK_SIZE = 16
DTYPES = ("float32", "bfloat16", "float16")
CACHE_RESERVE = 0.25
"""Part of the KV cache that the tenants' floors protect, where the longest request leaves so much."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker's settings; :meth:`parse` reads them from the command line, whose help says what each means."""

    model: Path
    adapter_store: Path
    adapter_roots: tuple[Path, ...]
    grant_key: Path
    host: str
    port: int
    slots: int
    kv_blocks: int
    max_model_len: int | None
    threads: int
    dtype: str
    max_running: int
    token_budget: int
    max_waiting: int
    max_waiting_per_tenant: int
    max_body_bytes: int
    drain_seconds: float
    health_deadline: float
    cache_reserve: float | None
    cache_cap: float
    cache_idle_seconds: float
    json: bool = False

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> WorkerConfig:
        """Raises :class:`ConfigError` for values that cannot work together, ``SystemExit`` for unreadable ones."""
        options = _parser().parse_args(arguments)
        config = cls(
            model=options.model.resolve(),
            adapter_store=options.adapter_store.resolve(),
            adapter_roots=tuple(root.resolve() for root in options.adapter_root),
            **{
                name: value
                for name, value in vars(options).items()
                if name not in ("model", "adapter_store", "adapter_root")
            },
        )
        config._check()
        return config

    @property
    def served_name(self) -> str:
        """What the base model is called in requests: the name of its directory."""
        return self.model.name

    def shares(self, max_model_len: int) -> ShareRules:
        """How tenants divide the cache; raises :class:`ConfigError` if the floors leave no room for a request."""
        longest = -(-(max_model_len - 1) // BLOCK_SIZE)  # the last token generated needs no position
        room = max(self.kv_blocks - longest, 0)
        wanted = int(self.kv_blocks * (CACHE_RESERVE if self.cache_reserve is None else self.cache_reserve))
        if self.cache_reserve is not None and wanted > room:
            raise ConfigError(
                f"--cache-reserve {self.cache_reserve} keeps {wanted} of {self.kv_blocks} blocks, but a request of "
                f"{max_model_len} tokens may need all but {room}; raise --kv-blocks or lower --max-model-len"
            )
        return ShareRules(
            reserved=min(wanted, room),
            cap=max(1, int(self.kv_blocks * self.cache_cap)),
            idle_seconds=self.cache_idle_seconds,
        )

    def _check(self) -> None:
        if not self.model.is_dir():
            raise ConfigError(f"--model {self.model} is not a directory; register the model first")
        if not (self.model / "config.json").is_file():
            raise ConfigError(f"--model {self.model} is not a model store directory: it holds no config.json")
        if not self.adapter_store.is_dir():
            raise ConfigError(f"--adapter-store {self.adapter_store} is not a directory")
        for root in self.adapter_roots:
            if not root.is_dir():
                raise ConfigError(f"--adapter-root {root} is not a directory")
        positive = ("kv_blocks", "threads", "max_running", "token_budget", "max_waiting", "max_waiting_per_tenant")
        for name in (*positive, "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
        if self.slots < 0:
            raise ConfigError("--slots must not be negative")
        self._check_cache()
        if self.token_budget < self.max_running:
            raise ConfigError("--token-budget must not be below --max-running: every running request decodes each step")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError("--max-model-len must be at least 2")

    def _check_cache(self) -> None:
        if self.cache_reserve is not None and not 0 <= self.cache_reserve < 1:
            raise ConfigError("--cache-reserve must be at least 0 and below 1")
        if not 0 < self.cache_cap <= 1:
            raise ConfigError("--cache-cap must be above 0 and at most 1")
        if not 0 < self.cache_idle_seconds < float("inf"):
            raise ConfigError("--cache-idle-seconds must be above 0")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inference", description="Serve one base model and its adapters.")
    add = parser.add_argument
    add("--model", type=Path, required=True, help="model store directory; its name is the model's name in requests")
    add("--adapter-store", type=Path, required=True, help="content-addressed store that adapters are loaded from")
    add("--adapter-root", type=Path, action="append", default=[], help="further directory an operator may load from")
    add("--grant-key", type=Path, required=True, help="Ed25519 public key (PEM) that grants are verified with")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8001, help="0: any free port; the ready line names it")
    add("--slots", type=int, default=8, help="adapters on the device at a time")
    add("--kv-blocks", type=int, default=640, help=f"KV cache in blocks of {BLOCK_SIZE} tokens")
    add("--max-model-len", type=int, default=None, help="most tokens of a request (default: what model and cache hold)")
    add("--threads", type=int, default=_cpus(), help="CPU threads of the core (default: all)")
    add("--dtype", choices=DTYPES, default="float32")
    add("--max-running", type=int, default=64, help="most requests in one step")
    add("--token-budget", type=int, default=512, help="most tokens in one step; longer prompts are cut into chunks")
    add("--max-waiting", type=int, default=1024, help="most queued requests")
    add("--max-waiting-per-tenant", type=int, default=256, help="most queued requests of one tenant")
    add("--max-body-bytes", type=int, default=8 * 1024 * 1024)
    add("--drain-seconds", type=float, default=30.0, help="how long running requests may go on after SIGTERM")
    add("--health-deadline", type=float, default=30.0, help="seconds a step may take before the worker is unhealthy")
    add(
        "--cache-reserve",
        type=float,
        help="part of the KV cache, 0 to 1, in which every tenant's equal share of cached prefixes is safe from others "
        f"(default: {CACHE_RESERVE}, or what the longest request leaves)",
    )
    add("--cache-cap", type=float, default=1.0, help="part of the KV cache that one tenant's prefixes may fill")
    add("--cache-idle-seconds", type=float, default=600.0, help="an idle tenant's prefixes are safe for so long")
    add("--json", action="store_true", help="the ready line as one JSON object")
    return parser


def _cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
