from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.constraints.vocabulary import Vocabulary
from inference.prompt import PromptRenderer
from inference.runner import TorchRunner
from tests.inference.constraints.core_thread import CoreThread, core_thread
from tests.inference.tiny_model import build_tiny_model

VOCAB, EOS = 384, frozenset([2])


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("constraints") / "tiny")


@pytest.fixture(scope="session")
def vocabulary(model: Path) -> Vocabulary:
    return Vocabulary.load(model, vocab_size=VOCAB, eos_token_ids=EOS)


@pytest.fixture(scope="session")
def renderer(model: Path) -> PromptRenderer:
    return PromptRenderer.load(model)


@pytest.fixture(scope="session")
def runner(model: Path) -> TorchRunner:
    return TorchRunner.load(model, num_blocks=320, num_slots=0, max_model_len=448, threads=1)


@pytest.fixture
def core(runner: TorchRunner, model: Path, vocabulary: Vocabulary) -> Iterator[CoreThread]:
    with core_thread(runner, model, vocabulary) as core:
        yield core
