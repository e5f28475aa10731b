"""The adapter check: what PEFT really writes is accepted, and everything else is refused by name."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from inference.adapter_config import parse_config
from inference.adapter_format import AdapterSpec, check_adapter, content_digest, store_path
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid, AdapterNotFound, UnsupportedModel

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}
CONFIG = LLAMA | {"architectures": ["LlamaForCausalLM"]}
BASE = BaseShapes.from_config(CONFIG)


def save_peft(directory: Path, **options: Any) -> tuple[Any, Path]:
    """A PEFT model with random A and B, saved by PEFT itself."""
    torch.manual_seed(0)
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(**LLAMA)), LoraConfig(task_type="CAUSAL_LM", **options))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(directory)
    return model, directory


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_peft(tmp_path_factory.mktemp("good") / "adapter", r=4, target_modules=["q_proj", "down_proj"])[1]


@pytest.fixture
def adapter(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "adapter"))


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_header(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "adapter_model.safetensors"
    data = path.read_bytes()
    [length] = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def refused(directory: Path, base: BaseShapes = BASE) -> AdapterInvalid:
    with pytest.raises(AdapterInvalid) as caught:
        check_adapter(directory, base)
    return caught.value


def peft_scalings(model: Any) -> dict[str, tuple[int, float]]:
    """Module → (rank, scaling) as PEFT itself has them."""
    found = {}
    for name, module in model.named_modules():
        if hasattr(module, "scaling") and (hasattr(module, "lora_A") or hasattr(module, "lora_embedding_A")):
            found[name.removeprefix("base_model.model.")] = (module.r["default"], module.scaling["default"])
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"r": 4, "target_modules": ["q_proj", "v_proj"]},
        {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
        {"r": 4, "lora_alpha": 16, "use_rslora": True, "target_modules": ["gate_proj"]},
        {"r": 4, "target_modules": ["q_proj"], "layers_to_transform": [0, 2]},
        {"r": 4, "target_modules": ["q_proj"], "layers_to_transform": 1, "layers_pattern": "layers"},
        {"r": 4, "target_modules": r".*\.(0|2)\.self_attn\.(q|k)_proj"},
        {"r": 4, "target_modules": ["model.layers.1.mlp.up_proj", "o_proj"]},
        {
            "r": 4,
            "target_modules": ["q_proj", "v_proj", "down_proj"],
            "rank_pattern": {"v_proj": 2, r"layers\.1\.self_attn\.q_proj": 8, "q.proj": 6},
            "alpha_pattern": {"down_proj": 3, "model.layers.0.self_attn.q_proj": 5},
        },
        {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": "gaussian", "lora_dropout": 0.1},
        {"r": 4, "target_modules": ["embed_tokens", "lm_head", "q_proj"], "rank_pattern": {"embed_tokens": 6}},
        {"r": 4, "target_modules": ["lm_head", "q_proj"], "use_dora": True},
        {"r": 4, "target_modules": "all-linear", "exclude_modules": ["q_proj", "model.layers.1.mlp.up_proj"]},
        {"r": 4, "target_modules": "all-linear", "exclude_modules": r".*\.1\..*"},
        {"r": 4, "target_modules": ["embed_tokens", "q_proj"], "layers_to_transform": [1]},
    ],
    ids=lambda options: "-".join(sorted(options)),
)
def test_what_peft_saves_is_read_as_peft_has_it(options: dict[str, Any], tmp_path: Path) -> None:
    model, directory = save_peft(tmp_path / "adapter", **options)
    spec = check_adapter(directory, BASE)
    ours = {target.module: (target.rank, target.scaling) for target in spec.targets}
    theirs = peft_scalings(model)
    assert ours.keys() == theirs.keys()
    for module, (rank, scaling) in theirs.items():
        assert ours[module][0] == rank
        assert math.isclose(ours[module][1], scaling)
    assert spec.dtype == "F32"
    assert spec.max_rank == max(rank for rank, _ in theirs.values())
    assert [target.module for target in spec.targets] == [name for name in BASE.modules if name in theirs]
    for target in spec.targets:
        assert (target.magnitude is not None) == options.get("use_dora", False)
        assert (target.copy is not None) == (target.module in ("model.embed_tokens", "lm_head"))


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_half_precision_is_accepted(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    _, directory = save_peft(tmp_path / "adapter", r=4, target_modules=["q_proj"])
    path = directory / "adapter_model.safetensors"
    tensors = {key: value.to(dtype) for key, value in load_file(path).items()}
    save_file(tensors, path)
    assert check_adapter(directory, BASE).dtype == name
    poisoned = dict(tensors)
    first = next(iter(poisoned))
    for value in (float("nan"), float("inf"), -float("inf")):
        poisoned[first] = tensors[first].clone()
        poisoned[first][-1, -1] = value
        save_file(poisoned, path)
        assert refused(directory).field == first


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("use_dora", "yes"),
        ("modules_to_save", ["lm_head"]),
        ("bias", "all"),
        ("trainable_token_indices", [1]),
        ("peft_type", "IA3"),
        ("fan_in_fan_out", True),
        ("lora_bias", True),
        ("layer_replication", [[0, 2]]),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("exclude_modules", ["q_proj"]),
        ("exclude_modules", [1]),
        ("exclude_modules", {"q_proj": 1}),
        ("exclude_modules", ["q_proj"] * 1025),
        ("target_parameters", ["mlp.experts"]),
        ("use_qalora", True),
        ("alora_invocation_tokens", [1, 2]),
        ("task_type", "SEQ_CLS"),
        ("brand_new_option", None),
        ("layers_pattern", "(.*.*)*h"),
        ("r", 8),
        ("r", 0),
        ("r", "4"),
        ("r", True),
        ("lora_alpha", "8"),
        ("lora_alpha", True),
        ("lora_alpha", 10**400),
        ("lora_dropout", 10**400),
        ("modules_to_save", [[[[]]]]),
        ("use_rslora", "yes"),
        ("rank_pattern", {"(.*.*)*q_proj": 4}),
        ("alpha_pattern", {"^q_proj": 4}),
        ("alpha_pattern", [4]),
        ("rank_pattern", {"." * 257: 4}),
        ("rank_pattern", {f"m{number}": 4 for number in range(1025)}),
        ("target_modules", ["q_proj"] * 1025),
        ("target_modules", ["q_proj", "q" * 257]),
        ("layers_to_transform", [0] * 1025),
        ("target_modules", []),
        ("target_modules", None),
        ("target_modules", ["q_proj"]),
        ("target_modules", ["q_proj", "down_proj", "v_proj"]),
        ("target_modules", ["q_proj", "down_proj", "lm_head"]),
        ("target_modules", "all-linear"),
        ("layers_to_transform", [0]),
        ("layers_to_transform", ["0"]),
    ],
)
def test_config_is_refused_by_name(key: str, value: object, adapter: Path) -> None:
    edit_config(adapter, **{key: value})
    error = refused(adapter)
    named = "target_modules" if key == "layers_to_transform" and value == [0] else key
    assert error.field is not None
    assert error.field.split(".")[0] == named
    assert named in str(error)


@pytest.mark.parametrize("key", ["peft_type", "r", "lora_alpha", "target_modules"])
def test_missing_config_key_is_named(key: str, adapter: Path) -> None:
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text())
    del config[key]
    path.write_text(json.dumps(config))
    assert refused(adapter).field == key


def test_a_large_config_is_refused_by_size(adapter: Path) -> None:
    edit_config(adapter, rank_pattern={"." * 80_001: 4})
    assert "65536 are accepted" in str(refused(adapter))


def test_the_longest_patterns_hold_nobody_up() -> None:
    """The worker checks between two tokens of every tenant: as many keys as are accepted, on a model of 80 layers."""
    base = BaseShapes.from_config(CONFIG | {"num_hidden_layers": 80})
    keys = {"." * 20 + f"{number:05}" + "." * 4: 4 for number in range(1024)}
    config = parse_config(
        {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "rank_pattern": keys}
        | {"alpha_pattern": dict(keys)}
    )
    started = time.process_time()
    assert {(config.rank_of(module), config.scaling_of(module)) for module in base.modules} == {(4, 2.0)}
    assert time.process_time() - started < 1.0


def test_a_hostile_regular_expression_is_never_run(adapter: Path) -> None:
    edit_config(adapter, target_modules="(.*.*.*.*.*.*.*.*)*_projX")  # PEFT does not come back from this one
    assert len(check_adapter(adapter, BASE).targets) == 6


FIRST = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda h: h.update({"unknown": h.pop(FIRST)}), "unknown"),
        (lambda h: h.update({FIRST.replace(".0.", ".9."): h.pop(FIRST)}), FIRST.replace(".0.", ".9.")),
        (lambda h: h[FIRST].update(dtype="I64"), FIRST),
        (lambda h: h[FIRST].update(dtype="F64"), FIRST),
        (lambda h: h[FIRST].update(shape=[4, 47]), FIRST),
        (lambda h: h[FIRST].update(shape=[48, 4]), FIRST),
        (lambda h: h[FIRST].update(shape=[192]), FIRST),
        (lambda h: h[FIRST].update(shape=[True, 192]), FIRST),
        (lambda h: h[FIRST].update(shape=[-4, -48]), FIRST),
        (lambda h: h[FIRST].update(shape=[4, 2**70]), FIRST),
        (lambda h: h[FIRST].update(data_offsets=[1, 769]), None),
        (lambda h: h[FIRST].update(data_offsets=[0.0, 768.0]), FIRST),
        (lambda h: h[FIRST].update(surprise=1), FIRST),
        (lambda h: h.update(__metadata__={"a": 1}), "__metadata__"),
        (lambda h: h.pop(FIRST), None),
        (lambda h: h.clear(), "adapter_model.safetensors"),
    ],
)
def test_header_is_refused(change: Callable[[dict[str, Any]], None], field: str | None, adapter: Path) -> None:
    edit_header(adapter, change)
    error = refused(adapter)
    assert field is None or error.field == field


def test_a_lone_a_is_refused(adapter: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    del tensors[FIRST.replace("lora_A", "lora_B")]
    save_file(tensors, path)
    assert refused(adapter).field == FIRST


PREFIX = "base_model.model."
EMBEDDING, HEAD, Q = "model.embed_tokens.", "lm_head.", "model.layers.0.self_attn.q_proj."


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """With every kind of tensor that is accepted: without DoRA, with embedding and head; and with DoRA."""
    directory = tmp_path_factory.mktemp("rich")
    modules = ["embed_tokens", "lm_head", "q_proj"]
    return {
        False: save_peft(directory / "lora", r=4, target_modules=modules)[1],
        True: save_peft(directory / "dora", r=4, target_modules=modules[1:], use_dora=True)[1],
    }


@pytest.mark.parametrize(
    ("dora", "name", "replacement", "field"),
    [
        (False, EMBEDDING + "lora_embedding_A", torch.ones(4, 65), EMBEDDING + "lora_embedding_A"),
        (False, EMBEDDING + "lora_embedding_A", torch.ones(64, 4), EMBEDDING + "lora_embedding_A"),
        (False, EMBEDDING + "lora_embedding_A", None, EMBEDDING + "lora_embedding_B"),
        (False, EMBEDDING + "lora_embedding_B", torch.ones(31, 4), EMBEDDING + "lora_embedding_B"),
        (False, EMBEDDING + "lora_A.weight", torch.ones(4, 64), EMBEDDING + "lora_A.weight"),
        (False, EMBEDDING + "lora_magnitude_vector", torch.ones(32), EMBEDDING + "lora_magnitude_vector"),
        (False, HEAD + "lora_embedding_A", torch.ones(4, 32), HEAD + "lora_embedding_A"),
        (False, HEAD + "lora_B.weight", torch.ones(4, 64), HEAD + "lora_B.weight"),
        (False, EMBEDDING + "base_layer.weight", torch.ones(32, 64), EMBEDDING + "base_layer.weight"),
        (False, HEAD + "base_layer.weight", torch.ones(65, 32), HEAD + "base_layer.weight"),
        (False, HEAD + "base_layer.weight", torch.full((64, 32), math.inf), HEAD + "base_layer.weight"),
        (False, HEAD + "base_layer.bias", torch.ones(64), HEAD + "base_layer.bias"),
        (False, Q + "base_layer.weight", torch.ones(32, 32), Q + "base_layer.weight"),
        (False, "model.embed_tokens.weight", torch.ones(64, 32), "model.embed_tokens.weight"),
        (False, "lm_head.weight", torch.ones(64, 32), "lm_head.weight"),
        (False, "model.layers.1.mlp.up_proj.base_layer.weight", torch.ones(48, 32), None),
        (False, Q + "lora_magnitude_vector", torch.ones(32), Q + "lora_magnitude_vector"),
        (True, EMBEDDING + "base_layer.weight", torch.ones(64, 32), EMBEDDING + "base_layer.weight"),
        (True, Q + "lora_magnitude_vector", torch.ones(31), Q + "lora_magnitude_vector"),
        (True, Q + "lora_magnitude_vector", torch.ones(1, 32), Q + "lora_magnitude_vector"),
        (True, Q + "lora_magnitude_vector", torch.full((32,), math.nan), Q + "lora_magnitude_vector"),
        (True, Q + "lora_magnitude_vector", None, "use_dora"),
        (True, Q + "lora_magnitude_vector.weight", torch.ones(32), Q + "lora_magnitude_vector.weight"),
        (True, "model.layers.1.mlp.up_proj.lora_magnitude_vector", torch.ones(48), None),
    ],
)
def test_tensors_of_other_kinds_are_refused_by_name(
    dora: bool, name: str, replacement: torch.Tensor | None, field: str | None, rich: dict[bool, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    directory = shutil.copytree(rich[dora], tmp_path / "adapter")
    assert check_adapter(directory, BASE).targets, "it is the change that is refused"
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    if replacement is None:
        del tensors[PREFIX + name]
    else:
        tensors[PREFIX + name] = replacement
    save_file(tensors, path)
    error = refused(directory)
    assert error.field == (field if field == "use_dora" else PREFIX + (field or name))


def test_dora_on_the_embedding_is_refused_by_name(tmp_path: Path) -> None:
    _, directory = save_peft(tmp_path / "adapter", r=4, target_modules=["embed_tokens", "q_proj"], use_dora=True)
    assert "use_dora" in str(refused(directory))


def test_only_the_adapters_own_matrices_have_to_share_a_type(rich: dict[bool, Path], tmp_path: Path) -> None:
    """PEFT keeps them in float32 beside a copy of a bfloat16 base."""
    from safetensors.torch import load_file, save_file

    directory = shutil.copytree(rich[False], tmp_path / "adapter")
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    copies = {name: value.bfloat16() for name, value in tensors.items() if "base_layer" in name}
    save_file(tensors | copies, path)
    assert check_adapter(directory, BASE).dtype == "F32"
    name = PREFIX + HEAD + "lora_A.weight"
    save_file(tensors | {name: tensors[name].bfloat16()}, path)
    assert "mixes" in str(refused(directory))


def test_duplicate_keys_are_refused(adapter: Path) -> None:
    path = adapter / "adapter_config.json"
    path.write_text('{"r": 8, ' + path.read_text().lstrip()[1:])
    assert "twice" in str(refused(adapter))


def test_trailing_data_is_refused(adapter: Path) -> None:
    with (adapter / "adapter_model.safetensors").open("ab") as file:
        file.write(b"\0")
    refused(adapter)


@pytest.mark.parametrize("name", ["adapter_model.bin", "modeling.py", ".hidden", "sub"])
def test_other_files_are_refused(name: str, adapter: Path) -> None:
    (adapter / name).mkdir() if name == "sub" else (adapter / name).write_text("x")
    assert refused(adapter).field == name


def test_links_and_pipes_are_refused(adapter: Path, tmp_path: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert refused(adapter).field == path.name
    path.unlink()
    os.mkfifo(path)
    assert refused(adapter).field == path.name
    path.unlink()
    path.mkdir()
    assert "not a regular file" in str(refused(adapter))
    path.rmdir()
    assert "missing" in str(refused(adapter))


def test_an_adapter_of_another_base_is_refused(adapter: Path) -> None:
    assert "shape" in str(refused(adapter, BaseShapes.from_config(CONFIG | {"hidden_size": 64})))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_never_raise_anything_else(data: st.DataObject, rich: dict[bool, Path], adapter: Path) -> None:
    good = rich[data.draw(st.booleans())]
    shutil.copytree(good, adapter, dirs_exist_ok=True)
    path = adapter / data.draw(st.sampled_from(["adapter_model.safetensors", "adapter_config.json"]))
    content = bytearray((good / path.name).read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0] if path.suffix == ".safetensors" else len(content)
    for _ in range(data.draw(st.integers(1, 4))):
        match data.draw(st.sampled_from(["flip", "cut", "insert", "length"])):
            case "flip" if content:
                content[data.draw(st.integers(0, min(header, len(content)) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del content[data.draw(st.integers(0, len(content))) :]
            case "insert":
                at = data.draw(st.integers(0, min(header, len(content))))
                content[at:at] = data.draw(st.binary(max_size=20) | st.sampled_from([b"[" * 5000, b"1" * 5000]))
            case "length":
                content[:8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
    path.write_bytes(content)
    outcome: AdapterSpec | AdapterInvalid
    tracemalloc.start()
    try:
        outcome = check_adapter(adapter, BASE)
    except AdapterInvalid as error:
        outcome = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        shutil.copyfile(good / path.name, path)
    assert peak < 16 << 20
    if isinstance(outcome, AdapterInvalid):
        assert 0 < len(str(outcome)) < 1000
    else:
        assert 1 <= len(outcome.targets) <= len(BASE.modules)


def test_digest_follows_the_content_and_only_that(adapter: Path, good: Path) -> None:
    assert content_digest(adapter) == content_digest(good)
    (adapter / "README.md").write_text("ignored")
    assert content_digest(adapter) == content_digest(good)
    config = adapter / "adapter_config.json"
    config.write_bytes(config.read_bytes() + b"\n")
    assert content_digest(adapter) != content_digest(good)


def test_store_path_takes_digests_only(tmp_path: Path) -> None:
    digest = "ab" * 32
    assert store_path(tmp_path, digest) == tmp_path / "ab" / digest
    for name in ("../../etc", "", digest[:-1], digest.upper(), digest + "\n"):
        with pytest.raises(AdapterNotFound):
            store_path(tmp_path, name)


def test_an_unusable_base_config_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="hidden_size"):
        BaseShapes.from_config({"architectures": ["LlamaForCausalLM"]})
    with pytest.raises(UnsupportedModel, match="GPT2"):
        BaseShapes.from_config({"architectures": ["GPT2LMHeadModel"]})
