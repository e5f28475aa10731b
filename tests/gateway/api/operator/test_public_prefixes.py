from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tenants.models import AuditEntry
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error
from tests.gateway.house import House

PREFIXES = "/api/operator/public-prefixes"
SYSTEM = [{"role": "system", "content": "You are the assistant of Initech, and answer every question at once. " * 3}]


@pytest.fixture
def house(db: None, tiny_model_dir: Path) -> House:
    return House(tiny_model_dir)


def test_declare_look_withdraw(operator: Caller, house: House) -> None:
    body = {"name": "support", "model": house.base.name, "messages": SYSTEM}
    made = operator.post(PREFIXES, body)
    assert made.status_code == 201, made.content
    shown = made.json()
    assert shown["messages"] == SYSTEM
    assert (shown["prompt"], shown["adapter"]) == (None, None)
    assert shown["shared_tokens"] == shown["tokens"] // 16 * 16 > 0
    assert operator.get(f"{PREFIXES}/support").json() == shown
    assert error(operator.post(PREFIXES, body), 409)["param"] == "name"
    operator.post(PREFIXES, {"name": "raw", "model": house.base.name, "prompt": "a b c d " * 10})
    assert [each["name"] for each in operator.get(PREFIXES).json()["data"]] == ["raw", "support"]
    assert operator.delete(f"{PREFIXES}/support").status_code == 204
    assert error(operator.delete(f"{PREFIXES}/support"), 404)["param"] == "name"
    entries = AuditEntry.objects.unscoped().filter(subject="support").order_by("pk")
    assert [(entry.action, entry.actor_name) for entry in entries] == [
        ("public_prefix.declared", "tests"),
        ("public_prefix.withdrawn", "tests"),
    ]


def test_for_an_adapter(operator: Caller, house: House) -> None:
    name = house.adapter(house.actor("acme"), "pirate", "a" * 64)
    made = operator.post(PREFIXES, {"name": "p", "model": house.base.name, "adapter": name, "messages": SYSTEM}).json()
    assert made["adapter"] == "acme/pirate"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": "no spaces"}, "name"),
        ({"name": "a\0"}, "name"),
        ({"model": "nothing"}, "model"),
        ({"adapter": "acme/nothing"}, "adapter"),
        ({"adapter": "x"}, "adapter"),
        ({"messages": None}, "prompt"),
        ({"prompt": "x " * 40}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"messages": None, "prompt": "x" * 200_001}, "prompt"),
        ({"tokens": [1]}, "tokens"),
    ],
)
def test_wrong_values(operator: Caller, house: House, change: dict[str, Any], param: str) -> None:
    body = {"name": "support", "model": house.base.name, "messages": SYSTEM} | change
    assert error(operator.post(PREFIXES, body), 400)["param"] == param


def test_a_tenants_key_is_no_operators(caller: Make, house: House) -> None:
    for answer in (caller().get(PREFIXES), caller().post(PREFIXES, {"name": "x"}), caller().delete(f"{PREFIXES}/x")):
        error(answer, 401)
