"""Whatever an adapter's files hold: the check ends soon, says what is wrong in words that can be stored, and the report
of all problems agrees with it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inference.adapter_config import READ_HERE
from inference.adapter_format import check_adapter
from inference.adapter_problems import MOST, find_problems
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid
from tenants import intake, tasks
from tenants.models import AdapterVersion
from tests.tenants.conftest import LLAMA, write_adapter

BASE = BaseShapes.from_config(LLAMA)
FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

EVIL_PATTERNS = ["(.*.*)*_projX", "(a+)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", ".*" * 500, "(" * 5000, "[", "\0", "\ud800"]
KEYS = [*sorted(READ_HERE), "bias", "modules_to_save", "peft_type", "task_type", "init_lora_weights", "lora_dropout"]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(EVIL_PATTERNS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
configs = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), anything, max_size=8)
names = st.sampled_from(
    [f"base_model.model.model.layers.0.self_attn.q_proj.{end}" for end in ("lora_A.weight", "lora_B.weight", "x")]
) | st.text(max_size=20)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I8", "", "F8_E4M3"]) | anything,
        "shape": st.lists(st.integers(-1, 1 << 50), max_size=9) | anything,
        "data_offsets": st.lists(st.integers(-1, 1 << 50), min_size=2, max_size=2) | anything,
    }
)
headers = st.dictionaries(names | st.just("__metadata__"), entries | anything, max_size=5)


def judged(folder: Path) -> list[dict[str, Any]]:
    """The report; agrees with the check, in time, in words that PostgreSQL stores."""
    began = time.monotonic()
    try:
        check_adapter(folder, BASE)
        passed = True
    except AdapterInvalid:
        passed = False
    found = find_problems(folder, BASE)
    assert time.monotonic() - began < 2
    assert passed == (found == [])
    assert len(found) <= MOST
    for problem in found:
        assert "\0" not in json.dumps(problem, ensure_ascii=False)
        json.dumps(problem, ensure_ascii=False).encode()
        assert len(problem["message"]) <= 1000
    return found


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


@FUZZ
@given(config=configs)
@example(config={"target_modules": "(.*.*)*_projX"})
@example(config={"target_modules": ["q_proj"] * 100_000})
@example(config={"rank_pattern": {"(.*.*)*_projX": 3}, "alpha_pattern": {"^(a+)+$": 1}})
@example(config={"exclude_modules": "(a|a)*b"})
@example(config={"layers_to_transform": [10**400]})
@example(config={"lora_alpha": 10**400})
@example(config={"r": float("nan")})
def test_any_configuration(config: dict[str, Any], tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    whole = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], **config}
    (folder / "adapter_config.json").write_bytes(dumped(whole))
    judged(folder)


@FUZZ
@given(header=headers, extra=st.integers(0, 64))
@example(header={"__metadata__": {"a": 1}}, extra=0)
@example(header={str(n): {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in range(30_000)}, extra=4)
def test_any_header(header: dict[str, Any], extra: int, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    data = dumped(header)
    (folder / "adapter_model.safetensors").write_bytes(len(data).to_bytes(8, "little") + data + bytes(extra))
    judged(folder)


@FUZZ
@given(edits=st.lists(st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=8)), min_size=1, max_size=5))
@example(edits=[(0, b"\xff" * 8)])
@example(edits=[(0, b"\0" * 8)])
@example(edits=[(600, b"\xff\xff\xff\x7f")])
def test_any_damage(edits: list[tuple[int, bytes]], tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        path = folder / file
        data = bytearray(path.read_bytes())
        for at, new in edits:
            data[at : at + len(new)] = new
        path.write_bytes(data)
    judged(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"{" * 60_000,
        b'{"a":' * 10_000,
        b'{"r": 1, "r": 2}',
        b"\xff\xfe",
        b'{"r": NaN}',
        b"9" * 60_000,
    ],
    ids=range(9),
)
def test_any_json(content: bytes, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "adapter")
    (folder / "adapter_config.json").write_bytes(content)
    assert judged(folder)
    (folder / "adapter_model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
    assert judged(folder)


def test_every_problem_is_listed_with_what_to_do(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path / "adapter", bias="all", modules_to_save=["x"], target_modules=["v_proj", "nowhere"]
    )
    found = {problem["field"]: problem for problem in judged(folder)}
    assert {"bias", "modules_to_save", "target_modules"} <= found.keys()
    assert all(problem["advice"] for problem in found.values())


@pytest.mark.parametrize("pattern", EVIL_PATTERNS)
def test_evil_patterns_through_intake(
    pattern: str, world: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.INCOMING_DIR, settings.ADAPTER_STORE = tmp_path / "incoming", tmp_path / "store"
    monkeypatch.setattr(tasks.check_adapter, "delay", lambda pk: None)
    tenant = world.actor("acme").tenant
    source = write_adapter(tmp_path / "adapter", target_modules=pattern, rank_pattern={pattern: 2})
    began = time.monotonic()
    version = intake.receive(tenant=tenant, name="pirate", source=source)
    intake.check(version.pk)
    assert time.monotonic() - began < 3
    decided = AdapterVersion.objects.filter(adapter__tenant=tenant).get()
    assert decided.state == "rejected"
    assert decided.report["problems"][0]["field"] == "rank_pattern"
