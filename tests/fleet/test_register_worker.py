"""A worker is registered under the model whose weights it serves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread

import pytest
from django.core.management import CommandError, call_command

from fleet.models import Worker
from tenants.models import BaseModel


@pytest.fixture
def base(db: None) -> BaseModel:
    return BaseModel.objects.create(name="m", fingerprint="f" * 64, directory=str(Path("/m")), context_length=9)


def register(**options: str) -> dict[str, object]:
    out = StringIO()
    call_command(
        "register_worker",
        **({"name": "w", "url": "http://127.0.0.1:1/", "model": "m", "json": True} | options),
        stdout=out,
    )
    return json.loads(out.getvalue())


@pytest.fixture
def other_worker() -> Iterator[str]:
    """The address of one that serves other weights than the model's."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "ok", "fingerprint": "e" * 64}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_other_weights_are_refused(base: BaseModel, other_worker: str) -> None:
    with pytest.raises(CommandError, match=r"--model: .*e{64}, but m is registered with f{64}"):
        register(url=other_worker)
    assert not Worker.objects.exists()
    BaseModel.objects.update(fingerprint="e" * 64)
    assert register(url=other_worker)["problem"] is None


def test_one_that_does_not_answer_is_registered_with_a_warning(base: BaseModel) -> None:
    out, warning = StringIO(), StringIO()
    call_command("register_worker", name="w", url="http://127.0.0.1:1", model="m", stdout=out, stderr=warning)
    assert "registered" in out.getvalue()
    assert (
        "http://127.0.0.1:1 does not serve now, and gets no requests until it does: The worker cannot be reached"
        in warning.getvalue()
    )


def test_registers_once_and_updates(base: BaseModel) -> None:
    assert register()["created"] is True
    again = register(url="http://127.0.0.1:2", state="draining")
    assert (again["created"], again["url"], again["state"]) == (False, "http://127.0.0.1:2", "draining")
    assert Worker.objects.get().url == "http://127.0.0.1:2"


@pytest.mark.parametrize(
    "url", ["h:1", "ftp://h", "http://", "http://u:p@h", "http://h/path", "http://h?q", "http://h:99999"]
)
def test_refuses_addresses_by_name(base: BaseModel, url: str) -> None:
    with pytest.raises(CommandError, match="--url"):
        register(url=url)
    assert not Worker.objects.exists()


def test_refuses_an_unknown_model(base: BaseModel) -> None:
    with pytest.raises(CommandError, match="--model"):
        register(model="x")
