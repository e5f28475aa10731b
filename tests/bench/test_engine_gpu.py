"""``make bench-gpu`` where there is no GPU: the whole command on a tiny model, its check, and its floor."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCH = Path(__file__).parent
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    """The command's files, which import each other by their bare names as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        names = ("figures", "random_model", "gpu_engine", "gpu_reference", "engine_gpu")
        yield {name: importlib.import_module(name) for name in names}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(BENCH / "engine_gpu.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.slow
def test_the_whole_command_runs_on_a_tiny_model(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    folder = tmp_path / "weights"
    folder.mkdir()
    done = command("--tiny", "--device", "cpu", "--folder", str(folder), "--repeats", "1", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A TINY MODEL" in done.stdout
    assert "64 tokens are theirs" in done.stderr
    figures = {figure["name"]: figure for figure in json.loads(out.read_text())}
    mixes = ("base", "1_adapter", "4_adapters", "8_adapters")
    assert set(figures) == {
        *(f"{kind}_{mix}" for kind in ("decode", "floor", "peft") for mix in mixes),
        *(f"{mix}_add" for mix in mixes[1:]),
        *("copy", "decode_none_loaded", "base_adds", "prefill_base", "prefill_4_adapters"),
        *("decode_base_sampled", "decode_base_nucleus"),
    }
    assert figures["decode_8_adapters"]["baseline"] == figures["floor_8_adapters"]["value"]
    assert list(folder.iterdir()) == [], "nothing of the random weights is left"


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = command()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "no CUDA device" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "cpu"), "--tiny with --device cpu"),
        (("--tiny", "--folder", "/nowhere"), "--folder: /nowhere is no directory"),
        (("--tiny", "--repeats", "-1"), "--repeats: at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(
    bench: dict[str, ModuleType], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    try:
        status = bench["engine_gpu"].main(arguments)
    except SystemExit as refused:
        status = refused.code
    assert status == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err.splitlines()[-1]


@pytest.fixture(scope="module")
def model(bench: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, tiny = tmp_path_factory.mktemp("weights"), bench["random_model"].TINY
    return bench["random_model"].write_model(folder, tiny, adapters=8, rank=16, dtype=torch.float32, device=CPU)


@pytest.fixture(scope="module")
def reference(bench: dict[str, ModuleType], model: Any) -> Any:
    return bench["gpu_reference"].Reference(model, 8, CPU)


@pytest.mark.slow
def test_tokens_of_the_wrong_adapter_or_the_wrong_position_end_it(
    bench: dict[str, ModuleType], model: Any, reference: Any
) -> None:
    class Neighbours:
        """The same model, each of whose adapters is the next one's."""

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def adapter(self, index: int) -> Path:
            return Path(model.adapter((index + 1) % 8))

    for found, right in ((model, True), (Neighbours(), False)):
        engine = bench["gpu_engine"].Engine(found, bench["engine_gpu"].SMALL, CPU)
        engine.load_adapters()
        answers = engine.answers()
        assert {answer.adapter for answer in answers} == {0, 1, 2, 4, 5, 6, None}
        if right:
            assert reference.check(answers) <= 1e-3
            answers[3].tokens[5] = (answers[3].tokens[5] + 1) % 512  # one token of a row without an adapter
            with pytest.raises(SystemExit, match=r"no figures: row 3 \(adapter None\), token [56]"):
                reference.check(answers)
        else:
            with pytest.raises(SystemExit, match="no figures: row 0"):
                reference.check(answers)


def test_the_floor_is_what_a_step_of_llama_3_8b_reads(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    random_model, engine_gpu = bench["random_model"], bench["engine_gpu"]
    config = random_model.ModelConfig.from_json(random_model.LLAMA_3_8B)
    model = random_model.RandomModel(tmp_path, config, 16, torch.bfloat16)
    assert model.step_bytes == 2 * (8_030_261_248 - 128_256 * 4096)  # the model card's count, less the embedding
    assert model.adapter_bytes == 83_886_080
    assert model.token_bytes == 131_072
    load = engine_gpu.FULL
    added = engine_gpu.floor_milliseconds(model, load, 64, 4e12) - engine_gpu.floor_milliseconds(model, load, 0, 4e12)
    assert added == pytest.approx(1000 * 64 * 83_886_080 / 4e12)
    empty = engine_gpu.floor_milliseconds(model, load, 0, 4e12)
    middle = load.context + 2 + load.steps * load.repeats / 2
    assert empty == pytest.approx(1000 * (model.step_bytes + 64 * middle * 131_072) / 4e12)


def test_weights_that_the_disk_does_not_hold_are_refused(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    random_model = bench["random_model"]
    with pytest.raises(SystemExit, match=r"--folder: .* do not fit into"):
        random_model.write_model(
            tmp_path, random_model.LLAMA_3_8B, adapters=1 << 30, rank=16, dtype=torch.bfloat16, device=CPU
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_is_stopped_while_peft_computes_has_the_engines_figures(
    bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "found.json"
    engine_gpu = bench["engine_gpu"]

    def stopped(*_: Any) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_gpu, "measure_reference", stopped)
    with pytest.raises(KeyboardInterrupt):
        engine_gpu.main(["--tiny", "--device", "cpu", "--repeats", "1", "--folder", str(tmp_path), "--out", str(out)])
    names = {figure["name"] for figure in json.loads(out.read_text())}
    assert {"decode_8_adapters", "decode_base_nucleus", "prefill_base"} <= names


def test_steps_ahead_say_what_the_host_takes_of_them(bench: dict[str, ModuleType], model: Any) -> None:
    engine = bench["gpu_engine"].Engine(model, bench["engine_gpu"].SMALL, CPU)
    engine.decode(0)
    assert engine.launching is None
    engine._runner.go_ahead()
    (first, *_) = engine.decode(0, bench["gpu_engine"].CHOICES["nucleus"])
    assert engine.launching > 0
    assert first > 0


def test_what_does_not_fit_beside_has_no_figure(bench: dict[str, ModuleType]) -> None:
    class Full:
        """A reference for whose largest mix the device has no memory."""

        def decode(self, load: Any, adapters: int) -> list[float]:
            if adapters == 8:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return [5.0]

    figures = bench["figures"].Figures()
    missing = bench["engine_gpu"].measure_reference(Full(), bench["engine_gpu"].SMALL, figures)
    assert set(figures.rows) == {"peft_base", "peft_1_adapter", "peft_4_adapters"}
    assert missing == ["peft_8_adapters: no figure, it does not fit into the device's memory"]
