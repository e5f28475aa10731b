from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

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
        "register_worker", **({"name": "w", "url": "http://h:1/", "model": "m", "json": True} | options), stdout=out
    )
    return json.loads(out.getvalue())


def test_registers_once_and_updates(base: BaseModel) -> None:
    assert register()["created"] is True
    again = register(url="http://h:2", state="draining")
    assert (again["created"], again["url"], again["state"]) == (False, "http://h:2", "draining")
    assert Worker.objects.get().url == "http://h:2"


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
