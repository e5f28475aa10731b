"""``manage.py up --demo``, as a person meets it: the real processes, the printed commands, Ctrl-C, kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops.installation import PROJECT, READY, Up, environment, family, start, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory, smollm_dir: Path) -> Path:
    """A data directory that has the model already, so that nothing is fetched twice."""
    folder = tmp_path_factory.mktemp("up") / "var"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / smollm_dir.name).symlink_to(smollm_dir)
    return folder


@pytest.fixture(scope="module")
def up(data_dir: Path) -> Iterator[Up]:
    running = start(data_dir)
    yield running
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        running.process.wait(60)


def test_demo_json_has_the_promised_shape_and_is_private(up):
    path = up.data_dir / "demo.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    demo = up.demo
    assert list(demo) == ["url", "ws_url", "admin", "base_model", "tenants"]
    assert demo["url"] == f"http://127.0.0.1:{up.port}"
    assert demo["ws_url"] == f"ws://127.0.0.1:{up.port}/v1/ws"
    assert set(demo["admin"]) == {"user", "password"}
    assert [set(tenant) for tenant in demo["tenants"]] == [{"name", "api_key", "adapters"}] * 2


def test_each_tenant_sees_its_own_adapters_under_the_names_of_demo_json(up):
    demo = up.demo
    for tenant in demo["tenants"]:
        status, body = up.get("/v1/models", tenant["api_key"])
        assert status == 200
        assert {model["id"] for model in json.loads(body)["data"]} == {demo["base_model"], *tenant["adapters"]}


def printed_snippets(up: Up) -> list[str]:
    text = up.out.read_text().split(READY)[0]
    return [part.split("\n", 1)[1] for part in re.split(r"^# ", text, flags=re.M)[1:]]


@pytest.mark.parametrize("number", range(4), ids=["curl", "curl-stream", "websocket", "openai"])
def test_the_printed_snippets_work_as_pasted(up, number):
    snippet = printed_snippets(up)[number]
    done = subprocess.run(["bash", "-c", snippet], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
    if number == 0:
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]
    elif number == 1:
        assert done.stdout.rstrip().endswith("data: [DONE]")
    elif number == 2:
        assert done.stdout.rstrip().endswith("\ndone")
    assert len(done.stdout) > 10


def test_the_operators_page_opens_with_the_printed_password(up):
    status, body = up.get("/admin/login/")
    assert status == 200
    assert b"csrfmiddlewaretoken" in body


def test_doctor_finds_nothing_wrong(up):
    command = [sys.executable, str(PROJECT / "manage.py"), "doctor", "--json"]
    env = environment(up.data_dir, up.port)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    report = json.loads(done.stdout)
    assert report["ok"], [check for check in report["checks"] if not check["ok"]]
    assert done.returncode == 0


def test_links_that_commands_print_lead_to_where_it_serves(up):
    """``PORT`` is in the environment of ``up`` alone."""
    env = environment(up.data_dir, up.port)
    del env["PORT"]
    command = [sys.executable, str(PROJECT / "manage.py"), "password_link", "admin", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    link = json.loads(done.stdout)["link"]
    assert link.startswith(f"http://127.0.0.1:{up.port}/accounts/passwords/")
    assert up.get(link.removeprefix(f"http://127.0.0.1:{up.port}"))[0] == 200


def test_a_second_up_on_the_same_data_is_refused_in_one_sentence(up):
    done = subprocess.run(
        [sys.executable, str(PROJECT / "manage.py"), "up"],
        env=environment(up.data_dir, up.port),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"already runs on {up.data_dir} (process {up.process.pid})" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_busy_port_is_refused_in_one_sentence(up, tmp_path):
    done = subprocess.run(
        [sys.executable, str(PROJECT / "manage.py"), "up"],
        env=environment(tmp_path / "other", up.port),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"Port {up.port} on 127.0.0.1 cannot be used" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_killed_worker_comes_back_and_serves(up):
    before = up.pid_of("-m inference")
    os.killpg(before, signal.SIGKILL)
    until(lambda: "worker is ready again" in up.out.read_text(), 120, "the worker is back")
    assert up.pid_of("-m inference") != before
    key = up.demo["tenants"][0]["api_key"]

    def serves() -> bool:
        body = {"model": "acme/pirate", "prompt": "Hello", "max_tokens": 4}
        request = urllib.request.Request(
            f"http://127.0.0.1:{up.port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status == 200
        except urllib.error.HTTPError:
            return False

    until(serves, 60, "the gateway uses the worker again")


def test_ctrl_c_stops_everything_and_a_second_start_reuses_everything(up):
    first = up.demo
    assert len(family(up.data_dir)) >= 5
    bystander = subprocess.Popen(["sleep", "300"])
    try:
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert family(up.data_dir) == {}
        assert not (up.data_dir / "address").exists()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()

    again = start(up.data_dir)
    try:
        assert again.demo["tenants"] == first["tenants"]
        assert again.demo["admin"] == first["admin"]
        status, _ = again.get("/v1/models", first["tenants"][0]["api_key"])
        assert status == 200
    finally:
        os.kill(again.process.pid, signal.SIGKILL)
        again.process.wait(10)
    until(lambda: family(up.data_dir) == {}, 60, "nothing outlives a killed up")


def test_after_a_kill_it_starts_again_and_sigterm_ends_it_with_status_0(data_dir, up):
    if up.process.poll() is None:
        pytest.skip("needs the installation stopped by the test before")
    again = start(data_dir)
    again.process.send_signal(signal.SIGTERM)
    assert again.process.wait(60) == 0
    assert family(data_dir) == {}
