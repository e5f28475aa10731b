"""The worker as operators start it, on the real model."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from inference.adapter_format import content_digest, store_path
from inference.client import WorkerClient
from inference.model_store import fingerprint_of
from inference.prompt import PromptRenderer
from inference.protocol import Grant

ADAPTERS = Path(__file__).resolve().parents[3] / "examples" / "adapters"


def token(keys: Any, model_dir: Path, adapter: str | None = None) -> str:
    grant = Grant(
        str(uuid.uuid4()), "t", "t", fingerprint_of(model_dir), adapter, 500, 100, 0, 1, int(time.time()) + 60
    )
    return jwt.encode(grant.claims(), keys.private.read_bytes(), algorithm="EdDSA")


async def test_it_answers_with_the_base_and_with_adapters_in_one_batch(worker: Any, grant_keys: Any) -> None:
    from django.conf import settings

    prompt = PromptRenderer.load(worker.model_dir).encode_chat(
        [{"role": "user", "content": "What is the capital of France?"}]
    )
    digests: list[str | None] = [None]
    for directory in sorted(path for path in ADAPTERS.iterdir() if (path / "adapter_config.json").is_file()):
        digest = content_digest(directory)
        target = store_path(Path(settings.ADAPTER_STORE), digest)
        target.mkdir(parents=True, exist_ok=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(directory / name, target)
        digests.append(digest)
    assert len(digests) >= 4

    async def answer(client: WorkerClient, digest: str | None) -> str:
        body = {"model": digest or worker.base, "prompt": prompt, "max_tokens": 24, "temperature": 0}
        deltas = client.generate(body, token(grant_keys, worker.model_dir, digest))
        return "".join([delta.text async for delta in deltas])

    async with aiohttp.ClientSession() as session:
        client = WorkerClient(worker.url, session)
        assert (await client.health())["status"] == "ok"
        together = await asyncio.gather(*(answer(client, digest) for digest in digests * 2))
        alone = [await answer(client, digest) for digest in digests]
    assert together == alone * 2
    assert "Paris" in alone[0]
    assert len(set(alone)) == len(alone)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"--model": "/nowhere"}, "is not a directory; register the model first"),
        ({"--adapter-store": "/nowhere"}, "--adapter-store /nowhere is not a directory"),
        ({"--grant-key": "/nowhere"}, "the grant key /nowhere cannot be read"),
        ({"--max-model-len": "99999"}, "exceeds the model's context"),
        ({"--token-budget": "1"}, "--token-budget must not be below --max-running"),
        ({"--kv-blocks": "0"}, "--kv-blocks must be at least 1"),
    ],
)
def test_a_start_that_cannot_work_says_why(
    smollm_dir: Path, grant_keys: Any, tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    status, said = start(smollm_dir, grant_keys, tmp_path, changes)
    assert status == 1
    assert sentence in said
    assert "Traceback" not in said


def test_a_busy_port_is_said_at_once(smollm_dir: Path, grant_keys: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        status, said = start(smollm_dir, grant_keys, tmp_path, {"--port": port})
    assert status == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said


def start(model: Path, keys: Any, store: Path, changes: dict[str, str]) -> tuple[int, str]:
    options = {"--model": str(model), "--adapter-store": str(store), "--grant-key": str(keys.public), "--port": "0"}
    command = [part for option in {**options, **changes}.items() for part in option]
    done = subprocess.run(
        [sys.executable, "-m", "inference", *command], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def test_a_broken_model_stops_the_start_with_its_reason(smollm_dir: Path, grant_keys: Any, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(smollm_dir, model, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 0}))
    store = tmp_path / "store"
    store.mkdir()
    status, said = start(model, grant_keys, store, {})
    assert status == 1
    assert "The worker cannot start" in said
    assert "Traceback" not in said
