"""A tenant that uploads, and what is queued for checking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenants import tasks


@pytest.fixture
def tenant(world: Any, settings: Any, tmp_path: Path) -> Any:
    settings.INCOMING_DIR = tmp_path / "incoming"
    settings.ADAPTER_STORE = tmp_path / "store"
    return world.actor("acme").tenant


@pytest.fixture(autouse=True)
def queued(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ids: list[int] = []
    monkeypatch.setattr(tasks.check_adapter, "delay", ids.append)
    return ids
