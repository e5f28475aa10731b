"""An adapter through a real gateway process, as a program sends it: parts, resumption, and no body in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
from django.conf import settings
from safetensors.numpy import save_file

from tenants.models import AdapterVersion, ApiKey
from tests.gateway.house import Actor, Process
from tests.tenants.adapter_parts import NAMES, as_json, contents

PART = 2 << 20


@pytest.fixture
def client(gateway: Process, acme: Actor) -> Iterator[httpx.Client]:
    _, secret = ApiKey.issue(acme.tenant, scope="manage")
    with httpx.Client(
        base_url=gateway.url, headers={"Authorization": f"Bearer {secret.reveal()}"}, timeout=60
    ) as client:
        yield client


def adapter(folder: Path, megabytes: int) -> dict[str, bytes]:
    """Of an acceptable form; what it is for is the check's business."""
    folder.mkdir()
    random = numpy.random.default_rng(0)
    tensor = random.integers(0, 1 << 15, size=(megabytes, 1 << 19), dtype="uint16").view("float16")
    save_file({"base_model.model.x.lora_A.weight": tensor}, folder / NAMES[1])
    (folder / NAMES[0]).write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}')
    return contents(folder)


def announce(client: httpx.Client, files: dict[str, bytes]) -> str:
    answer = client.post("/api/uploads", json={"adapter": "pirate", "files": as_json(files)})
    assert answer.status_code == 201, answer.text
    return f"/api/uploads/{answer.json()['id']}"


def put(client: httpx.Client, upload: str, name: str, offset: int, data: Any) -> httpx.Response:
    return client.put(f"{upload}/files/{name}", params={"offset": offset}, content=data)


def resident(process: Process) -> int:
    """Bytes of the gateway in memory."""
    pages = int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_parts_of_a_large_adapter_and_memory(client: httpx.Client, gateway: Process, tmp_path: Path) -> None:
    files = adapter(tmp_path / "large", 96)
    upload = announce(client, files)
    assert put(client, upload, NAMES[0], 0, files[NAMES[0]]).status_code == 200
    data, most, before = files[NAMES[1]], 0, resident(gateway)
    for offset in range(0, len(data), PART):
        answer = put(client, upload, NAMES[1], offset, data[offset : offset + PART])
        assert answer.status_code == 200, answer.text
        most = max(most, resident(gateway) - before)
    done = client.post(f"{upload}/complete")
    assert (done.status_code, done.json()["state"], done.json()["version"]) == (200, "completed", 1), done.text
    assert most < 48 << 20, f"{most >> 20} MiB more for {len(data) >> 20} MiB in parts of {PART >> 20}"
    version = AdapterVersion.objects.unscoped().get()
    assert version.stored_bytes == sum(map(len, files.values()))
    assert client.delete("/api/adapters/pirate").status_code == 204


def test_what_breaks_off_is_taken_up_again(client: httpx.Client, tmp_path: Path) -> None:
    files = adapter(tmp_path / "small", 5)
    upload, name = announce(client, files), NAMES[1]
    data = files[name]

    def breaks_off() -> Iterator[bytes]:
        yield data[:100_000]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        put(client, upload, name, 0, breaks_off())
    assert client.get(upload).json()["files"][1]["received"] == 0, "a part that did not arrive whole is not kept"
    too_large = put(client, upload, name, 0, data[: settings.MAX_BODY_BYTES + 1])
    assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "request_too_large")
    chunked = iter([data[:PART], data[PART : PART + 5]])
    assert put(client, upload, name, 0, chunked).json()["files"][1]["received"] == PART + 5, "of unknown length"
    went_on = client.get(upload).json()["files"][1]["received"]
    assert put(client, upload, name, went_on, data[went_on:]).status_code == 200
    assert put(client, upload, NAMES[0], 0, files[NAMES[0]]).status_code == 200
    assert client.post(f"{upload}/complete").json()["state"] == "completed"
    for wrong in ("x", "-1", str(1 << 70)):
        answer = put(client, upload, name, wrong, b"x")  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "offset")


def test_the_commands_of_the_documentation(client: httpx.Client, gateway: Process, tmp_path: Path) -> None:
    adapter(tmp_path / "small", 1)
    document = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
    script = document.split("```sh\n")[1].split("```")[0]
    secret = client.headers["Authorization"].removeprefix("Bearer ")
    environment = {**os.environ, "GATEWAY": gateway.url, "KEY": secret}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path / "small", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert client.get("/api/adapters/pirate/versions/1").json()["state"] in {"pending", "rejected"}, done.stdout
