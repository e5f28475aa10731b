"""Adapters that come and go on two ranks, which all of these tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.core.step import Row
from inference.errors import AdapterInvalid
from inference.parallel import lead as lead_module
from inference.parallel.lead import LeadRunner
from inference.runner import TorchRunner
from tests.inference.ranks import led
from tests.inference.runs import Stream, run_greedy
from tests.inference.test_adapter_kinds import save_adapter
from tests.inference.test_parallel import KINDS, TOKENS

pytestmark = pytest.mark.slow  # each rank is a process that imports torch


@pytest.fixture(scope="module")
def adapters(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    kinds = [KINDS[kind] for kind in ("dora", "q and v", "embedding, head and linears")]
    return [save_adapter(tiny_model_dir, folder / str(n), n, options) for n, options in enumerate(kinds)]


@pytest.fixture(scope="module")
def one(tiny_model_dir: Path) -> TorchRunner:
    return TorchRunner.load(tiny_model_dir, num_blocks=160, num_slots=2, max_model_len=256)


@pytest.fixture(scope="module")
def two(tiny_model_dir: Path) -> Iterator[LeadRunner]:
    with led(tiny_model_dir, 2, slots=2) as lead:
        yield lead


def outputs(runner: LeadRunner | TorchRunner, paths: list[Path]) -> list[list[int]]:
    """Two requests that run on, while what lies in the slots beside them is loaded, replaced and cleared."""
    adapters = [runner.read_adapter(path) for path in paths]
    runner.load_adapter(0, adapters[0])
    first = Stream(TOKENS[:40], [40], range(10), slot=0)
    base = Stream(TOKENS[40:70], [10, 20], range(10, 20))
    run_greedy(runner, [first, base], 6)  # type: ignore[arg-type]
    runner.load_adapter(1, adapters[1])
    second = Stream(TOKENS[:30], [30], range(20, 30), slot=1)
    run_greedy(runner, [first, base, second], 12)  # type: ignore[arg-type]
    runner.load_adapter(1, adapters[2])
    third = Stream(TOKENS[:50], [17, 33], range(30, 40), slot=1)
    run_greedy(runner, [first, base, third], 24)  # type: ignore[arg-type]
    runner.clear_slot(1)
    fourth = Stream(TOKENS[:50], [50], range(40, 50), slot=1)
    run_greedy(runner, [first, fourth, base], 32)  # type: ignore[arg-type]
    runner.clear_slot(0)
    return [stream.output for stream in (first, base, second, third, fourth)]


def test_adapters_come_and_go_between_steps(two: LeadRunner, one: TorchRunner, adapters: list[Path]) -> None:
    assert outputs(two, adapters) == outputs(one, adapters)


def test_an_adapters_bytes_are_those_of_all_ranks(two: LeadRunner, one: TorchRunner, adapters: list[Path]) -> None:
    """A part that both hold is counted twice."""
    alone = one.adapter_bytes(one.read_adapter(adapters[1]))
    assert alone < two.adapter_bytes(two.read_adapter(adapters[1])) <= 2 * alone


def test_ranks_are_told_with_the_next_step_what_rank_0_forgot(two: LeadRunner, adapters: list[Path]) -> None:
    gc.collect()  # what other tests have let go
    two.run([Row([5], 0, [0])])
    assert two.ranks._forgotten.empty()
    held = two.read_adapter(adapters[1])
    number = held.number
    two.load_adapter(0, held)
    del held
    gc.collect()
    assert two.ranks._forgotten.get_nowait() == number
    assert two.ranks._forgotten.empty()
    two.ranks.forget(number)
    two.run([Row([5], 0, [0])])
    assert two.ranks._forgotten.empty()


def test_what_one_rank_cannot_read_is_nobodys_and_no_reason_to_end(
    two: LeadRunner, one: TorchRunner, adapters: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AdapterInvalid) as caught:
        two.read_adapter(tmp_path)
    assert caught.value.field == "adapter_config.json"
    with monkeypatch.context() as patch:
        patch.setattr(lead_module, "content_of", lambda directory: "other")
        with pytest.raises(AdapterInvalid, match="changed while they were read"):
            two.read_adapter(adapters[0])
    with monkeypatch.context() as patch:
        read = two.own.read_adapter  # the files are there as long as rank 0 reads
        patch.setattr(two.own, "read_adapter", lambda directory: read(adapters[0]))
        patch.setattr(lead_module, "content_of", lambda directory: "")
        with pytest.raises(AdapterInvalid, match=r"rank 1: adapter_config\.json is missing"):
            two.read_adapter(tmp_path)
    with pytest.raises(TypeError, match="HostAdapter"):
        two.load_adapter(0, one.read_adapter(adapters[0]))
    assert outputs(two, adapters) == outputs(one, adapters)
