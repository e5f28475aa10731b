"""The whole platform under load: PostgreSQL, admission and settlement, the router, the worker, one gateway process.

It runs in a data directory of its own, so a demo that is running on this machine is not touched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load import Call
from processes import ROOT, Process, free_port, own_settings
from workload import ADAPTERS, IN_FLIGHT, OUTPUT_TOKENS, adapter_name, prompts

TENANTS = 4
"""The eight adapters belong to four tenants, two each."""


@dataclass(slots=True)
class Platform:
    """``with Platform(...)``: started, seeded with tenants without effective limits, and stopped at the end."""

    model: Path
    adapters: Path
    folder: Path
    threads: int
    url: str = ""
    keys: list[str] = field(default_factory=list)
    process: Process = field(init=False)

    @property
    def env(self) -> dict[str, str]:
        return own_settings(
            self.folder / "data",
            PORT=self.url.rpartition(":")[2],
            LORAPLEX_BASE_MODEL=str(self.model),
            LORAPLEX_WORKER_THREADS=str(self.threads),
            LORAPLEX_WORKER_SLOTS=str(ADAPTERS),
        )

    def __enter__(self) -> Platform:
        models = self.folder / "data" / "models"
        models.mkdir(parents=True)
        (models / self.model.name).symlink_to(self.model, target_is_directory=True)
        self.url = f"http://127.0.0.1:{free_port()}"
        argv = [sys.executable, str(ROOT / "manage.py"), "up"]
        self.process = Process(argv, self.folder / "up.log", self.env)
        self.process.start()
        try:
            self.process.wait_for(self.url, seconds=300)
            self.seed()
        except BaseException:
            self.process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def manage(self, *arguments: str) -> Any:
        argv = [sys.executable, str(ROOT / "manage.py"), *arguments, "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=self.env, check=False)
        if done.returncode:
            raise SystemExit(f"manage.py {' '.join(arguments)} failed\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
        return json.loads(done.stdout)

    def seed(self) -> None:
        for number in range(TENANTS):
            tenant = f"bench{number}"
            self.manage("create_tenant", tenant)
            limits = ["--requests-per-minute", "1000000", "--max-concurrent", "1000"]
            self.manage("set_limits", tenant, *limits)
            self.keys.append(self.manage("issue_key", tenant)["api_key"])
        for index in range(ADAPTERS):
            name = adapter_name(index)
            owner = f"bench{index % TENANTS}"
            self.manage("add_adapter", "--tenant", owner, "--name", name, "--path", str(self.adapters / name))

    def billed_tokens(self) -> int:
        """Completion tokens in the ledger, over all tenants."""
        return sum(self.manage("usage", f"bench{number}")["completion_tokens"] for number in range(TENANTS))

    def call(self, row: int, prompt: str, mixed: bool) -> Call:
        tenant = row % TENANTS
        body = {
            "model": f"bench{tenant}/{adapter_name(row)}" if mixed else self.model.name,
            "prompt": prompt,
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return Call(body, lambda: self.keys[tenant])

    def round(self, number: int, waves: int, mixed: bool) -> list[Call]:
        """``waves`` × 16 calls with prompts that no earlier round had."""
        calls = []
        for wave in range(waves):
            texts = prompts(self.model, round_number=50_000 + 100 * number + wave)
            calls += [self.call(row, text, mixed) for row, text in enumerate(texts)]
        assert len(calls) == waves * IN_FLIGHT
        return calls
