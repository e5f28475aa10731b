"""Tars: what ordinary programs write is read; what is hostile is refused soon, in a sentence, with no file outside."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inference.errors import AdapterInvalid
from tenants import adapter_tar
from tests.tenants.adapter_parts import NAMES, tar_of

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights" * 300}


def unpack(data: bytes, folder: Path) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    source, target = folder / "adapter.tar", folder / "out"
    source.write_bytes(data)
    shutil.rmtree(target, ignore_errors=True)
    adapter_tar.unpack(source, target)
    return {path.name: path.read_bytes() for path in target.iterdir()}


def refused(data: bytes, folder: Path) -> str:
    began = time.monotonic()
    with pytest.raises(AdapterInvalid) as error:
        unpack(data, folder)
    assert time.monotonic() - began < 5
    assert {path.name for path in (folder / "out").iterdir()} <= {*NAMES, "golden.json"}
    return str(error.value)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_python_writes_is_read(mode: str, form: int, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    source = tmp_path / "source"
    source.mkdir()
    for name, data in FILES.items():
        (source / name).write_bytes(data)
    (source / "README.md").write_text("about it")
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as tar:
        tar.add(source, arcname=".")
    assert unpack(buffer.getvalue(), tmp_path / "work") == FILES


@pytest.mark.parametrize("options", [[], ["--format=posix"], ["-z"]])
def test_what_tar_writes_is_read(options: list[str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, data in FILES.items():
        (source / name).write_bytes(data)
    command = ["tar", *options, "-C", str(source), "-cf", "-", *NAMES]
    made = subprocess.run(command, capture_output=True, check=True)
    assert unpack(made.stdout, tmp_path / "work") == FILES


@pytest.mark.parametrize(
    "name",
    [
        "../adapter_config.json",
        "/etc/adapter_config.json",
        "a/adapter_config.json",
        "adapter_model.bin",
        "..",
        "\n",
    ],
)
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    assert "does not belong to an adapter" in refused(tar_of({**FILES, name: b"x"}), tmp_path / "work")
    assert not (tmp_path / "adapter_config.json").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"L", b"S", b"Z"]
)
def test_links_devices_and_the_like_are_refused(kind: bytes, tmp_path: Path) -> None:
    data = tar_of({"adapter_config.json": b""}, type=kind, linkname="/etc/passwd")
    assert "no regular file" in refused(data, tmp_path / "work")


def test_extended_headers_may_not_change_an_entry(tmp_path: Path) -> None:
    for key, value in (
        ("path", "../evil"),
        ("size", "1"),
        ("linkpath", "/etc"),
        ("GNU.sparse.size", "9"),
        ("x" * 99, ""),
    ):
        data = tar_of({"adapter_config.json": b"{}"}, pax_headers={key: value})
        assert "extended header" in refused(data, tmp_path / "work")
    data = tar_of({"adapter_config.json": b"{}"}, pax_headers={"comment": "x" * (1 << 20)})
    assert "at most" in refused(data, tmp_path / "work")


def test_a_file_twice_or_too_large_or_too_many(tmp_path: Path) -> None:
    one = tar_of({"adapter_config.json": b"{}"})[:1024]
    assert "twice" in refused(one + one + bytes(1024), tmp_path / "work")
    assert "at most" in refused(tar_of({"adapter_config.json": bytes(1 << 20)}), tmp_path / "work")
    readme = tar_of({"README.md": b""})[:512]
    assert "entries" in refused(readme * 100 + bytes(1024), tmp_path / "work")
    assert "at most" in refused(tar_of({"README.md": bytes(2 << 20)}), tmp_path / "work")


def test_a_bomb_stops_early(tmp_path: Path) -> None:
    bomb = gzip.compress(tar_of({"adapter_model.safetensors": bytes(256 << 20)}))
    assert len(bomb) < 1 << 20
    assert "times its size" in refused(bomb, tmp_path / "work")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x1f\x8b",
        b"\x1f\x8b\x08\x08" + b"x" * (8 << 20),  # a file name without end
        gzip.compress(b"") * 100_000,  # members without content
        gzip.compress(b"no tar"),
        b"x" * 2000,
        bytes(511),
        tar_of(FILES)[:700],
    ],
    ids=range(8),
)
def test_what_is_no_tar(data: bytes, tmp_path: Path) -> None:
    assert refused(data, tmp_path / "work")


SMALL = settings(max_examples=150, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SMALL
@given(
    edits=st.lists(st.tuples(st.integers(0, 3071), st.binary(min_size=1, max_size=16)), max_size=6),
    length=st.integers(0, 20_000),
)
@example(edits=[(124, b"\x80" + b"\xff" * 11)], length=20_000)
@example(edits=[(124, b"77777777777")], length=20_000)
def test_a_damaged_tar_is_read_or_refused(edits: Any, length: int, tmp_path: Path) -> None:
    data = bytearray(tar_of(FILES, mtime=1.5))
    for at, new in edits:
        data[at : at + len(new)] = new
    for header in (0, 1024, 2048):  # so that the damage is looked at, not only the checksum
        block = bytes(data[header : header + 512])
        total = sum(block[:148]) + sum(block[156:]) + 8 * 32
        data[header + 148 : header + 156] = b"%06o\0 " % total
    try:
        found = unpack(bytes(data[:length]), tmp_path / "work")
    except AdapterInvalid:
        found = {}
    assert found.keys() <= {*NAMES, "golden.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"work"}
    assert {path.name for path in (tmp_path / "work").iterdir()} <= {"adapter.tar", "out"}
