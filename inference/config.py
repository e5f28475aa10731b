"""What a worker is told at its start.

Each option stands once, as a field of :class:`WorkerConfig`: its name, default, range and help. The command line is
made from the fields, and the core reads the same object: the front hands it over as one JSON argument.
"""

# ruff: noqa: RUF009 - each field is made by one function, which dataclasses.field() is no different from
from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from inference import options
from inference.core.limits import Limits
from inference.core.shares import ShareRules
from inference.errors import ConfigError
from inference.options import option

BLOCK_SIZE = 16
DTYPES = ("auto", "float32", "bfloat16", "float16")
WEIGHTS = ("full", "int8", "fp8")
ADAPTER_WEIGHTS = ("full", "fp8")
CPU_BLOCKS = 640
CACHE_RESERVE = 0.25
"""Part of the KV cache that the tenants' floors protect, where the longest request leaves so much."""


def _cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker's settings; :meth:`parse` reads them from the command line, the core from :meth:`to_json`.

    An option is added by adding a field: the field ``some_name`` is the option ``--some-name``.
    """

    model: Path = option("model store directory; its name is the model's name in requests", kind=Path)
    adapter_store: Path = option("content-addressed store that adapters are loaded from", kind=Path)
    adapter_root: tuple[Path, ...] = option(
        "further directory an operator may load from", kind=Path, default=(), repeated=True
    )
    grant_key: Path = option("Ed25519 public key (PEM) that grants are verified with", kind=Path)
    host: str = option("address to listen on", default="127.0.0.1")
    port: int = option("0: any free port; the ready line names it", kind=int, default=8001, least=0, most=65535)
    slots: int = option("adapters on the device at a time; 0: the base model only", kind=int, default=8, least=0)
    kv_blocks: int | None = option(
        f"KV cache in blocks of {BLOCK_SIZE} tokens (default: {CPU_BLOCKS}; on one CUDA device what it has memory for)",
        kind=int,
        default=None,
        least=1,
    )
    max_model_len: int | None = option(
        "most tokens of a request (default: what model and cache hold)", kind=int, default=None, least=2
    )
    threads: int = option("CPU threads of the core (default: all)", kind=int, default=_cpus, least=1)
    device: str = option("auto: CUDA where there is one, else the CPU; or cpu, cuda, cuda:1, …", default="auto")
    dtype: str = option(
        "what weights and KV are computed in; auto: bfloat16 on CUDA, else float32", default="auto", choices=DTYPES
    )
    weights: str = option(
        "the linear layers in 8 bits, answers differ slightly; int8: for CPUs with AVX-512 VNNI, about twice as fast; "
        "fp8: for CUDA with a 16-bit dtype, little more than half the memory and the bytes that a step reads",
        default="full",
        choices=WEIGHTS,
    )
    adapter_weights: str = option(
        "fp8: the adapters' linear matrices in 8 bits on the device, half their memory on CUDA; answers of adapters "
        "differ slightly, the base model's do not; slower on a CPU",
        default="full",
        choices=ADAPTER_WEIGHTS,
    )
    eager: bool = option(
        "on CUDA, to look into a fault: steps without graphs, each waited for before the next is laid out",
        kind=bool,
        default=False,
    )
    tensor_parallel: int = option(
        "processes that share each layer, each with its part of the weights and of the KV cache: on CUDA a device each",
        kind=int,
        default=1,
        least=1,
        most=64,
    )
    max_running: int = option("most requests in one step", kind=int, default=64, least=1)
    token_budget: int = option(
        "most tokens in one step; longer prompts are cut into chunks", kind=int, default=512, least=1
    )
    host_adapter_mb: int = option(
        "adapters kept in host memory beside those on the device, in MB", kind=int, default=1024, least=0
    )
    speculate: int = option(
        "tokens guessed at once from what followed the same tokens earlier in the text; outputs stay the same",
        kind=int,
        default=0,
        least=0,
    )
    max_waiting: int = option("most queued requests", kind=int, default=1024, least=1)
    max_waiting_per_tenant: int = option("most queued requests of one tenant", kind=int, default=256, least=1)
    max_body_bytes: int = option("longest body of a request", kind=int, default=8 * 1024 * 1024, least=1)
    drain_seconds: float = option("how long running requests may go on after SIGTERM", kind=float, default=30.0)
    health_deadline: float = option("seconds a step may take before the worker is unhealthy", kind=float, default=8.0)
    cache_reserve: float | None = option(
        "part of the KV cache, 0 to 1, in which every tenant's equal share of cached prefixes is safe from others "
        f"(default: {CACHE_RESERVE}, or what the longest request leaves)",
        kind=float,
        default=None,
    )
    cache_cap: float = option("part of the KV cache that one tenant's prefixes may fill", kind=float, default=1.0)
    cache_idle_seconds: float = option("an idle tenant's prefixes are safe for so long", kind=float, default=600.0)
    open_metrics: bool = option(
        "/metrics names tenants and adapters to everybody who reaches the port, not only to operators",
        kind=bool,
        default=False,
    )
    json: bool = option("the ready line as one JSON object", kind=bool, default=False)

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> WorkerConfig:
        """Raises :class:`ConfigError` for values that cannot work together, ``SystemExit`` for unreadable ones."""
        config = cls(**vars(_parser().parse_args(arguments)))
        config._check()
        return config

    @classmethod
    def from_json(cls, text: str) -> WorkerConfig:
        values = json.loads(text)
        for each in fields(cls):
            if each.metadata["kind"] is Path:
                value = values[each.name]
                values[each.name] = tuple(map(Path, value)) if each.metadata["repeated"] else Path(value)
        return cls(**values)

    def to_json(self) -> str:
        """Every setting; none of them is a secret."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)}, default=_jsonable)

    @property
    def served_name(self) -> str:
        """What the base model is called in requests: the name of its directory."""
        return self.model.name

    def resolved(self, context_length: int) -> WorkerConfig:
        """With ``max_model_len`` set: what is asked for, the model's context, and the whole cache bound it. As far as
        they are known: without ``kv_blocks``, which the device decides then, only what is asked for is looked at.
        """
        if self.max_model_len is not None and self.max_model_len > context_length:
            raise ConfigError(f"--max-model-len exceeds the model's context of {context_length} tokens")
        if self.kv_blocks is None:
            return self
        held = self.kv_blocks * BLOCK_SIZE
        if self.max_model_len is None:
            return replace(self, max_model_len=min(context_length, held))
        if self.max_model_len > held:
            raise ConfigError(f"--max-model-len exceeds the KV cache of {held} tokens; raise --kv-blocks")
        return self

    def limits(self) -> Limits:
        """What the core takes on; the settings must be :meth:`resolved` with all that bounds them."""
        assert self.max_model_len is not None, "not resolved against the model's context"
        return Limits(
            max_model_len=self.max_model_len,
            max_running=self.max_running,
            token_budget=self.token_budget,
            host_adapter_bytes=self.host_adapter_mb * 1_000_000,
            speculate_tokens=self.speculate,
            max_waiting=self.max_waiting,
            max_waiting_per_tenant=self.max_waiting_per_tenant,
            shares=self.shares(self.max_model_len),
        )

    def shares(self, max_model_len: int) -> ShareRules:
        """How tenants divide the cache; raises :class:`ConfigError` if the floors leave no room for a request."""
        assert self.kv_blocks is not None, "the cache's size is not known yet"
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
        options.check_ranges(WorkerConfig, {each.name: getattr(self, each.name) for each in fields(self)})
        self._check_paths()
        if not re.fullmatch(r"auto|(cpu|cuda)(:[0-9]{1,3})?", self.device):
            raise ConfigError(f"--device must be auto, cpu, cuda or cuda:N, not {self.device!r}")
        for name in ("health_deadline", "cache_idle_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"--{name.replace('_', '-')} must be above 0")
        if not 0 <= self.drain_seconds < float("inf"):
            raise ConfigError("--drain-seconds must not be negative")
        if self.cache_reserve is not None and not 0 <= self.cache_reserve < 1:
            raise ConfigError("--cache-reserve must be at least 0 and below 1")
        if not 0 < self.cache_cap <= 1:
            raise ConfigError("--cache-cap must be above 0 and at most 1")
        if self.token_budget < self.max_running:
            raise ConfigError("--token-budget must not be below --max-running: every running request decodes each step")

    def _check_paths(self) -> None:
        if not self.model.is_dir():
            raise ConfigError(f"--model {self.model} is not a directory; register the model first")
        if not (self.model / "config.json").is_file():
            raise ConfigError(f"--model {self.model} is not a model store directory: it holds no config.json")
        if not self.adapter_store.is_dir():
            raise ConfigError(f"--adapter-store {self.adapter_store} is not a directory")
        for root in self.adapter_root:
            if not root.is_dir():
                raise ConfigError(f"--adapter-root {root} is not a directory")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inference", description="Serve one base model and its adapters.")
    options.add_options(parser, WorkerConfig)
    return parser


def _jsonable(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be handed to the core")


if __name__ == "__main__":  # the table of docs/worker.md
    sys.stdout.write(options.table(WorkerConfig) + "\n")
