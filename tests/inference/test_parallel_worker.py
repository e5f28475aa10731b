"""A whole worker over several ranks: its answers, its connections, and that it ends as one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from inference.adapter_format import content_digest, store_path
from inference.client import WorkerClient
from inference.errors import InferenceError
from tests.inference.front.actors import TinyWorker, is_alive
from tests.inference.tiny_model import build_tiny_model
from tests.stopped import stop

pytestmark = pytest.mark.slow

ADAPTERS = Path(__file__).resolve().parents[2] / "examples" / "adapters"
PROMPT = [5, 6, 7, 8, 9]
LONG = 16_000
"""Tokens of an answer that nobody waits for: more than two minutes, of which a test takes the first seconds."""
ROOM = ("--kv-blocks", "4096")
"""For four of them at once."""
Start = Callable[..., TinyWorker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(model, *options)``: a worker of the test's own, stopped at its end."""
    workers: list[TinyWorker] = []

    def start(model: Path, *options: str) -> TinyWorker:
        folder = tmp_path / f"worker-{len(workers)}"
        folder.mkdir()
        workers.append(TinyWorker(model, folder, *options))
        return workers[-1]

    yield start
    for worker in workers:
        if worker.process.poll() is None:
            worker.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def below(pid: int, module: str) -> list[int]:
    """Descendants that run this module."""
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    found = [one for one in children if module in Path(f"/proc/{one}/cmdline").read_text().split("\0")]
    return found + [each for one in children for each in below(one, module)]


def ranks_of(worker: TinyWorker) -> tuple[int, list[int]]:
    """Process ids of the core and of the other ranks."""
    (core,) = below(worker.process.pid, "inference.core.process")
    return core, below(core, "inference.parallel.rank")


async def text(worker: TinyWorker, session: aiohttp.ClientSession, digest: str | None, prompt: list[int]) -> str:
    body = {"model": digest or worker.model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
    deltas = WorkerClient(worker.url, session).generate(body, worker.signer.token(adapter=digest))
    return "".join([delta.text async for delta in deltas])


@pytest.fixture(scope="module")
def patient_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whose context holds answers of ``LONG`` tokens."""
    return build_tiny_model(tmp_path_factory.mktemp("patient") / "tiny", max_position_embeddings=2**14)


async def begun(worker: TinyWorker, session: aiohttp.ClientSession) -> list[asyncio.Task[int]]:
    """Requests that run on for much longer than a test, and have given their first tokens."""
    firsts = [asyncio.Event() for _ in range(4)]

    async def run(first: asyncio.Event) -> int:
        body = {"model": worker.model, "prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True}
        seen = 0
        async for delta in WorkerClient(worker.url, session).generate(body, worker.signer.token(max_output=LONG)):
            seen += len(delta.token_ids)
            first.set()
        return seen

    tasks = [asyncio.create_task(run(first)) for first in firsts]
    await asyncio.wait_for(asyncio.gather(*(first.wait() for first in firsts)), 30)
    return tasks


async def ended(worker: TinyWorker, pids: list[int], within: float) -> int:
    """The worker's exit status; nothing of it is left."""
    started = time.monotonic()
    status = await asyncio.to_thread(worker.process.wait, within)
    while any(map(is_alive, pids)):
        assert time.monotonic() - started < within, f"left over: {[pid for pid in pids if is_alive(pid)]}"
        await asyncio.sleep(0.02)
    return status


async def test_three_ranks_answer_as_one_over_http(
    start: Start, session: aiohttp.ClientSession, smollm_dir: Path, tmp_path: Path
) -> None:
    """SmolLM2 has 9 heads and 3 KV heads."""
    sources = sorted(path for path in ADAPTERS.iterdir() if (path / "adapter_config.json").is_file())[:3]
    digests: list[str | None] = [None, *map(content_digest, sources)]
    prompts = [list(range(100, 130)), list(range(400, 420)), [2000, 3000, 4000]]
    answers = []
    for index, size in enumerate(("1", "3")):
        worker = start(smollm_dir, "--tensor-parallel", size, "--slots", "2", "--health-deadline", "60")
        for source, digest in zip(sources, digests[1:], strict=True):
            assert digest is not None
            target = store_path(tmp_path / f"worker-{index}" / "store", digest)
            target.mkdir(parents=True)
            for name in ("adapter_config.json", "adapter_model.safetensors"):
                shutil.copy(source / name, target)
        pairs = [(digest, prompt) for digest in digests for prompt in prompts]
        answers.append(await asyncio.gather(*(text(worker, session, *pair) for pair in pairs)))
        assert (await WorkerClient(worker.url, session).health())["status"] == "ok"
        core, ranks = ranks_of(worker)
        assert len(ranks) == int(size) - 1
        worker.process.send_signal(signal.SIGTERM)
        assert await ended(worker, [core, *ranks], 20) == 0
    assert len(set(answers[0])) > len(prompts), "adapters that do nothing prove nothing"
    assert answers[0] == answers[1]


@pytest.mark.parametrize("killed", ["rank", "idle rank", "core", "front"])
async def test_who_is_killed_takes_all_along(
    start: Start, session: aiohttp.ClientSession, patient_model: Path, killed: str
) -> None:
    worker = start(patient_model, "--tensor-parallel", "2", *ROOM)
    core, ranks = ranks_of(worker)
    running = await begun(worker, session) if killed != "idle rank" else []
    victim = {"core": core, "front": worker.process.pid}.get(killed, ranks[0])
    os.kill(victim, signal.SIGKILL)
    outcomes = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 10)
    assert all(isinstance(outcome, InferenceError) for outcome in outcomes), outcomes
    if killed != "front":
        assert all("core has stopped" in str(outcome) for outcome in outcomes)
    assert await ended(worker, [core, *ranks], 10) == (1 if killed != "front" else -signal.SIGKILL)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
async def test_a_rank_that_hangs_ends_the_core(
    start: Start, session: aiohttp.ClientSession, patient_model: Path, busy: bool
) -> None:
    worker = start(patient_model, "--tensor-parallel", "2", *ROOM, "--health-deadline", "1")
    core, ranks = ranks_of(worker)
    running = await begun(worker, session) if busy else []
    stop(ranks[0])
    if not busy:  # nobody needs the rank until health's own step does
        await asyncio.sleep(1.2)  # the last step's answer is too old to count
        with pytest.raises(InferenceError):
            await WorkerClient(worker.url, session).health()
    outcomes = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 12)
    assert all("core has stopped" in str(outcome) for outcome in outcomes), outcomes
    assert await ended(worker, [core, *ranks], 12) == 1


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a worker puts what is temporary. Not below ``tmp_path``: the name of a socket has 107 bytes."""
    with TemporaryDirectory(prefix="ranks-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


async def test_ranks_are_reached_from_this_machine_alone_and_leave_no_folder(
    temporary: Path, start: Start, tiny_model_dir: Path
) -> None:
    worker = start(tiny_model_dir, "--tensor-parallel", "2")
    core, ranks = ranks_of(worker)
    listening = [address for pid in (core, *ranks) for address in listens(pid)]
    assert set(listening) == {"0100007F"}, "127.0.0.1"
    assert list(temporary.iterdir()) == []  # noqa: ASYNC240 once, at the end
    worker.process.send_signal(signal.SIGTERM)
    assert await ended(worker, [core, *ranks], 20) == 0


def listens(pid: int) -> Iterator[str]:
    """Addresses of the process' listening TCP sockets, as the kernel writes them (each four bytes backwards)."""
    own = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            own.add(str(each.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                yield fields[1].split(":")[0]


def test_a_number_of_ranks_that_cannot_be_stops_the_start(
    tiny_model_dir: Path, grant_keys: Any, tmp_path: Path
) -> None:
    def said(*options: str) -> list[str]:
        command = [sys.executable, "-m", "inference", "--model", str(tiny_model_dir), "--adapter-store", str(tmp_path)]
        command += ["--grant-key", str(grant_keys.public), "--port", "0", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        return done.stderr.strip().splitlines()

    sentence = "--tensor-parallel 4 does not divide the model's num_key_value_heads of 2"
    assert said("--tensor-parallel", "4") == [f"The worker cannot start: {sentence}"]
    assert said("--tensor-parallel", "0") == ["The worker cannot start: --tensor-parallel must be at least 1"]
    assert "--device cuda:0 is one device" in said("--tensor-parallel", "2", "--device", "cuda:0")[0]
