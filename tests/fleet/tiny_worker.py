"""A real worker process on the tiny model, and adapters that PEFT itself made for it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from subprocess import Popen
from typing import Any
from uuid import uuid4

from django.conf import settings

from gateway.embedded.process import last_lines, spawn, stop
from tests.gateway.house import wait_for


class TinyWorker:
    """Starts where ``start`` is called, on the same port each time, so that a restart is one."""

    def __init__(self, model_dir: Path, folder: Path, port: int, *options: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._process: Popen[bytes] | None = None
        settings.ADAPTER_STORE.mkdir(parents=True, exist_ok=True)
        self._command = [sys.executable, "-m", "inference", "--model", str(model_dir), "--host", "127.0.0.1"]
        self._command += ["--port", str(port), "--adapter-store", str(settings.ADAPTER_STORE), "--threads", "1"]
        self._command += ["--grant-key", str(settings.GRANT_PUBLIC_KEY_FILE), *options]

    def start(self) -> None:
        log = self._folder / f"worker-{uuid4().hex[:6]}.log"
        process = self._process = spawn(self._command, log)
        wait_for(lambda: process.poll() is not None or "ready http" in log.read_text(errors="replace"), 60)
        assert process.poll() is None, last_lines(log)

    def kill(self) -> None:
        if self._process is not None:
            stop(self._process, signal.SIGKILL)
            self._process = None


def peft_adapter(model_dir: Path, out: Path, *, seed: int = 0, strength: float = 0.3, **config: Any) -> Path:
    """An adapter saved by PEFT; B is random times ``strength``, so that 0 is one that changes nothing."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    options = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]} | config
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape) * strength
    model.save_pretrained(str(out))
    (out / "README.md").unlink(missing_ok=True)
    path = out / "adapter_config.json"
    values = {key: value for key, value in json.loads(path.read_text()).items() if value is not None}
    path.write_text(json.dumps(values))
    return out
