"""A worker whose context is shorter than its model's: an answer without a maximum ends where the worker's does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import GrantKeys, WorkerProcess, serving
from tests.end_to_end.conftest import RealHouse
from tests.end_to_end.test_openai_client import QUESTION, client_of
from tests.gateway.house import Process

pytestmark = pytest.mark.slow


@pytest.fixture
def worker(smollm_dir: Path, grant_keys: GrantKeys, tmp_path: Path) -> Iterator[WorkerProcess]:
    with serving(smollm_dir, grant_keys, tmp_path / "worker.log", "--max-model-len", "64") as worker:
        yield worker


async def test_an_answer_without_a_maximum_ends_at_the_workers_context(gateway: Process, house: RealHouse) -> None:
    acme = house.actor("acme")
    async with client_of(gateway, acme) as client:
        whole = await client.chat.completions.create(
            model=house.base.name, messages=QUESTION, temperature=0, extra_body={"ignore_eos": True}
        )
    assert whole.usage is not None
    assert whole.usage.total_tokens == 64
    assert whole.choices[0].finish_reason == "length"
    row = house.one_row(acme)
    assert (row.prompt_tokens, row.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
