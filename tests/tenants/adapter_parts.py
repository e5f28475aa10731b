"""An adapter's files as an upload declares and sends them."""

from __future__ import annotations

import io
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from tenants.upload_files import Declared

NAMES = ("adapter_config.json", "adapter_model.safetensors")


def contents(source: Path) -> dict[str, bytes]:
    return {name: (source / name).read_bytes() for name in NAMES}


def declared(files: dict[str, bytes]) -> list[Declared]:
    return [Declared(name, len(data), sha256(data).hexdigest()) for name, data in files.items()]


def as_json(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in declared(files)]


def tar_of(files: dict[str, bytes], mode: str = "w", **fields: Any) -> bytes:
    """As ``tarfile`` writes it; ``fields`` are set on every member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
