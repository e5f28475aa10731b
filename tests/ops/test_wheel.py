"""The wheel serves a page and an API call from an empty directory, with no checkout near."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from gateway.embedded.postgres import Postgres
from gateway.embedded.process import spawn, stop

PROJECT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(PROJECT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return next(out.glob("loraplex-*.whl"))


def test_the_wheel_carries_what_is_not_python(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    templates = [path.relative_to(PROJECT / "templates") for path in (PROJECT / "templates").rglob("*.html")]
    assert templates
    assert {f"console/templates/{path}" for path in templates} <= names
    static = [path.relative_to(PROJECT / "platform") for path in (PROJECT / "platform/console/static").rglob("*.css")]
    assert static
    assert {str(path) for path in static} <= names
    assert "gateway/example_adapters/pirate/adapter_model.safetensors" in names
    assert not [name for name in names if name.startswith(("tests/", "platform/", "var/"))]
    sql = [path.relative_to(PROJECT) for path in (PROJECT / "tenants/sql").rglob("*.sql")]
    assert {str(path) for path in sql} <= names


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _get(url: str, key: str | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_it_serves_a_page_and_an_api_call_from_an_empty_directory(wheel, tmp_path, tiny_model_dir):
    site, cwd = tmp_path / "site", tmp_path / "empty"
    cwd.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    env = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")}
    env |= {"PYTHONPATH": str(site), "DJANGO_SETTINGS_MODULE": "gateway.settings"}

    def loraplex(*arguments: str) -> str:
        code = "import sys, gateway.cli; sys.argv[0] = 'loraplex'; gateway.cli.main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = subprocess.run(
        [sys.executable, "-c", "import gateway; print(gateway.__file__)"],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(site)), "the wheel, not the checkout"
    loraplex("check")
    server = Postgres(cwd / "var", tmp_path / "postgres.log", fast=True)
    server.start()
    log, port = tmp_path / "gateway.log", _free_port()
    try:
        loraplex("migrate", "--verbosity", "0")
        loraplex("register_model", "--directory", str(tiny_model_dir))
        loraplex("create_tenant", "acme")
        key = json.loads(loraplex("issue_key", "acme", "--json"))["api_key"]
        command = [sys.executable, "-m", "uvicorn", "gateway.asgi:application", "--port", str(port)]
        process = spawn(command, log, env=env, cwd=cwd)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 60
            while True:
                try:
                    status, page = _get(f"{url}/")
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.2)
            assert status == 200
            assert b"<html" in page.lower()
            stylesheet = page.split(b'rel="stylesheet"')[1].split(b'href="')[1].split(b'"')[0].decode()
            assert _get(url + stylesheet)[0] == 200
            status, body = _get(f"{url}/v1/models", key)
            assert status == 200
            assert [model["id"] for model in json.loads(body)["data"]] == ["tiny"]
            assert _get(f"{url}/v1/models")[0] == 401
        finally:
            stop(process, signal.SIGTERM, patience=20)
    finally:
        server.stop()
