"""A model that this worker cannot serve stops its start, in one line that names why."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference import model_store

MISTRAL = {"architectures": ["MistralForCausalLM"], "sliding_window": None, "layer_types": ["sliding_attention"] * 2}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "architecture 'GemmaForCausalLM'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"head_dim": 23}, "head_dim 23"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ({"sliding_window": 64}, "sliding_window 64"),
        (MISTRAL, "layer_types"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
    ],
)
def test_the_start_fails_in_one_line(
    change: dict[str, object], named: str, tiny_model_dir: Path, grant_keys: Any, tmp_path: Path
) -> None:
    """Registration refuses it too; this one was registered all the same, say by another version."""
    directory, store = tmp_path / "model", tmp_path / "store"
    shutil.copytree(tiny_model_dir, directory)
    store.mkdir()
    for name in ("fingerprint", "manifest.json"):
        (directory / name).unlink()
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    model_store._seal(directory)
    options = ["--model", directory, "--adapter-store", store, "--grant-key", grant_keys.public, "--port", "0"]
    command = [sys.executable, "-m", "inference", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("The worker cannot start: config.json: ")
    assert named in line


def test_a_device_that_does_not_exist_is_named(tiny_model_dir: Path, grant_keys: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    options = ["--model", tiny_model_dir, "--adapter-store", store, "--grant-key", grant_keys.public, "--port", "0"]
    command = [sys.executable, "-m", "inference", *map(str, options), "--device", "cuda:99"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "device 'cuda:99': torch sees" in done.stderr
    assert "Traceback" not in done.stderr
