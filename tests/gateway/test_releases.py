"""A running gateway follows releases: promotion, a canary's share by user, one version by its number."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from tenants import releases
from tenants.actors import of_task
from tenants.models import Adapter, AdapterVersion, LedgerEntry
from tests.gateway.house import Actor, House, Process, wait_for

ACTOR = of_task("test")


def ask(gateway: Process, actor: Actor, model: str, user: str | None = None) -> tuple[int, Any]:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 1} | ({} if user is None else {"user": user})
    request = urllib.request.Request(
        f"{gateway.url}/v1/completions",
        json.dumps(body).encode(),
        {**actor.headers, "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def answered_by(gateway: Process, actor: Actor, model: str, user: str | None = None) -> str:
    """The stub says in its fingerprint which digest it was asked for."""
    status, answer = ask(gateway, actor, model, user)
    assert status == 200, answer
    return str(answer["system_fingerprint"]).removeprefix("stub-")[0]


@pytest.fixture
def released(house: House, acme: Actor) -> Actor:
    """acme/pirate with the versions 1, 2 and 3, whose digests begin with a, b and c."""
    house.adapter(acme, "pirate", "a" * 64)
    adapter = Adapter.objects.get(tenant=acme.tenant, name="pirate")
    for number, letter in ((2, "b"), (3, "c")):
        AdapterVersion.objects.create(adapter=adapter, number=number, state="ready", digest=letter * 64)
    return acme


def test_a_promotion_and_its_rollback_reach_the_gateway(gateway: Process, released: Actor) -> None:
    assert answered_by(gateway, released, "acme/pirate") == "a"
    for change, expected in (
        (lambda: releases.promote(ACTOR, released.tenant, "pirate", 2), "b"),
        (lambda: releases.rollback(ACTOR, released.tenant, "pirate"), "a"),
    ):
        change()
        begun = time.monotonic()
        wait_for(lambda expected=expected: answered_by(gateway, released, "pirate") == expected, 6)
        assert time.monotonic() - begun < 4.0, "what a gateway remembers of a key is good for 3 s"


def test_a_canary_answers_its_share_and_a_user_meets_one_side(gateway: Process, released: Actor) -> None:
    releases.set_canary(ACTOR, released.tenant, "pirate", 2, 40)
    wait_for(lambda: "b" in {answered_by(gateway, released, "pirate") for _ in range(5)}, 6)
    users = {f"user-{n}": answered_by(gateway, released, "pirate", f"user-{n}") for n in range(40)}
    assert 6 <= sum(side == "b" for side in users.values()) <= 26, "40 of a hundred, give or take three deviations"
    assert all(answered_by(gateway, released, "pirate", user) == side for user, side in list(users.items())[:10])
    assert {answered_by(gateway, released, "pirate") for _ in range(20)} == {"a", "b"}, "without a user, by request"

    def entries() -> list[LedgerEntry]:
        rows = LedgerEntry.objects.filter(tenant=released.tenant).select_related("adapter_version")
        return list(rows.order_by("created_at"))

    wait_for(lambda: len(entries()) >= 70)
    assert {entry.adapter_version.number for entry in entries()} == {1, 2}, "the ledger says who answered"


def test_one_version_is_called_by_its_number(gateway: Process, released: Actor, stranger: Actor) -> None:
    assert answered_by(gateway, released, "acme/pirate@3") == "c"
    assert ask(gateway, released, "pirate@3")[1]["model"] == "acme/pirate@3"
    nothing = ask(gateway, released, "pirate@4")
    assert (nothing[0], nothing[1]["error"]["code"]) == (404, "model_not_found")
    for name in ("acme/pirate@3", "acme/nothing@3"):
        status, answer = ask(gateway, stranger, name)
        assert (status, answer["error"]["message"].replace(name, "…")) == (
            404,
            nothing[1]["error"]["message"].replace("pirate@4", "…"),
        )
