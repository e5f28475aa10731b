"""What should lie on which worker, and a real worker that is killed, comes back empty and is filled again."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from django.core.management import call_command
from django.db import connections
from django.utils import timezone
from uuid6 import uuid7

from fleet import placement, residency
from fleet.dialects.native import NativeDialect
from fleet.dialects.report import Report
from fleet.live import Live
from fleet.placement import Plan, Wanted, plan
from tenants import intake, releases
from tenants.actors import of_task
from tenants.models import Adapter, AdapterVersion, InferenceRequest, Tenant
from tests.fleet.tiny_worker import TinyWorker, peft_adapter
from tests.gateway.house import Actor, House, free_port

ACTOR = of_task("test")


def serving(slots: int, *resident: str) -> Live:
    return Live(None, Report(slots=slots, resident=resident))


def test_pinned_ones_come_first_and_leave_a_slot_to_others() -> None:
    wishes = [Wanted(d, "pinned") for d in "abcd"] + [Wanted("r", "recent", 1.0)]
    found = plan(wishes, {"w": serving(4, "x", "y")}, ())["w"]
    assert (found.load, found.left_out) == (["a", "b", "c"], ["d"])
    assert "r" not in found.wanted, "what was used of late pushes nothing out"
    assert plan(wishes, {"w": serving(1)}, ())["w"].load == ["a"]
    assert plan(wishes, {"w": serving(0)}, ())["w"] == Plan(left_out=["a", "b", "c", "d"])


def test_canaries_push_nothing_out() -> None:
    """One tenant's idle canaries would take all slots but one of every worker."""
    wishes = [Wanted("r", "recent", 1.0)] + [Wanted(f"c{n}", "canary") for n in range(14)]
    workers = {"full": serving(4, "w", "x", "y", "z"), "empty": serving(8)}
    plans = plan(wishes, workers, ())
    assert plans["full"] == Plan()
    assert plans["empty"].load[0] == "r", "what is in use comes first"
    assert 1 < len(plans["empty"].load) <= 8
    alone = plan([Wanted("c", "canary")], {"w1": serving(4), "w2": serving(4)}, ())
    assert sorted(one.load for one in alone.values()) == [[], ["c"]], "where there is room: one worker has it"


def test_recent_ones_fill_free_slots_in_order_of_use() -> None:
    wishes = [Wanted(d, "recent", share) for d, share in (("a", 0.5), ("b", 0.3), ("c", 0.2))]
    assert plan(wishes, {"w": serving(2)}, ())["w"].load == ["a", "b"]
    assert plan(wishes, {"w": serving(2, "c", "z")}, ())["w"].load == []
    assert plan(wishes, {"w": serving(2, "c", "z")}, {"z"})["w"] == Plan(
        wanted={"a": "recent", "c": "recent"}, load=["a"], unload=["z"]
    )


def test_recent_ones_are_spread_by_their_share_and_stay_where_they_are() -> None:
    workers = {name: serving(8) for name in ("w1", "w2", "w3", "w4")}
    wishes = [Wanted("busy", "recent", 0.6)] + [Wanted(f"a{n}", "recent", 0.01) for n in range(16)]
    plans = plan(wishes, workers, ())
    copies = {wish.digest: sum(wish.digest in one.load for one in plans.values()) for wish in wishes}
    assert copies.pop("busy") == 3
    assert set(copies.values()) == {1}
    assert all(len(one.load) >= 2 for one in plans.values()), "by hash, not all on the first"
    again = plan(wishes, {name: serving(8, *one.load) for name, one in plans.items()}, ())
    assert all(not one.load for one in again.values())
    fewer = {name: serving(8, *plans[name].load) for name in ("w1", "w2", "w3")}
    moved = [digest for one in plan(wishes, fewer, ()).values() for digest in one.load if digest != "busy"]
    assert sorted(moved) == sorted(d for d in plans["w4"].load if d != "busy"), "only what the lost one had moves"


def used(house: House, actor: Actor, adapter: Adapter, times: int, ago: timedelta = timedelta()) -> None:
    now = timezone.now() - ago
    for _ in range(times):
        request_id = uuid7()
        if ago:
            request_id = UUID(int=(int(now.timestamp() * 1000) << 80) | (request_id.int & ((1 << 80) - 1)))
        InferenceRequest.objects.create(
            id=request_id, tenant=actor.tenant, key=actor.key, base_model=house.base, adapter_version=adapter.current,
            state="settled", prompt_tokens=1, max_tokens=1, admitted_at=now, lease_expires_at=now,
        )  # fmt: skip


def test_what_is_wanted(house: House) -> None:
    acme, globex = house.actor("acme"), house.actor("globex")
    for actor, name in ((acme, "pinned"), (acme, "busy"), (acme, "old"), (acme, "idle"), (globex, "quiet")):
        house.adapter(actor, name)
    get = {adapter.name: adapter for adapter in Adapter.objects.unscoped().select_related("current")}
    releases.set_pinned(ACTOR, acme.tenant, "pinned", True)
    canary = AdapterVersion.objects.create(adapter=get["idle"], number=2, state="ready", digest="c" * 64)
    releases.set_canary(ACTOR, acme.tenant, "idle", 2, 10)
    used(house, acme, get["busy"], 3)
    used(house, globex, get["quiet"], 1)
    used(house, acme, get["old"], 5, timedelta(hours=1))
    digest = {name: adapter.current.digest for name, adapter in get.items()}
    expected = [
        Wanted(digest["pinned"], "pinned"),
        Wanted(digest["busy"], "recent", 0.75),
        Wanted(digest["quiet"], "recent", 0.25),
        Wanted(canary.digest, "canary"),
    ]
    assert placement.wanted(house.base) == expected
    get["busy"].current = canary
    used(house, acme, get["busy"], 4)
    assert placement.wanted(house.base)[1] == Wanted(canary.digest, "canary", 0.5), "by its share, once it is met"
    Tenant.objects.filter(pk=acme.tenant.pk).update(state="suspended")
    assert [wish.digest for wish in placement.wanted(house.base)] == [digest["quiet"]], "nothing for a suspended tenant"
    other = House.__new__(House)
    other.base = type(house.base).objects.create(
        name="other", fingerprint="0" * 64, directory="/nowhere", context_length=9, config={}
    )
    assert placement.wanted(other.base) == [], "adapters of one base model are not for another"


@pytest.fixture
def worker(tiny_model_dir: Path, tmp_path: Path) -> Iterator[TinyWorker]:
    worker = TinyWorker(tiny_model_dir, tmp_path, free_port(), "--slots", "3")
    worker.start()
    yield worker
    worker.kill()


def resident(url: str) -> set[str]:
    async def ask() -> set[str]:
        async with aiohttp.ClientSession() as session:
            return set((await NativeDialect(url, session).report()).resident)

    return asyncio.run(ask())


def command(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("residency", *arguments, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@pytest.mark.slow
def test_a_restarted_worker_gets_its_adapters_back_and_loses_deleted_ones(
    house: House, worker: TinyWorker, tiny_model_dir: Path, tmp_path: Path, settings: Any
) -> None:
    settings.ACTIVATION_GATE = False
    acme, globex = house.actor("acme"), house.actor("globex")
    house.worker(worker.url, "tiny")
    versions = {}
    for seed, (actor, name) in enumerate(((acme, "pirate"), (acme, "emoji"), (globex, "json"))):
        source = peft_adapter(tiny_model_dir, tmp_path / name, seed=seed)
        version = intake.receive(tenant=actor.tenant, name=name, source=source)
        intake.check(version.pk)
        version.refresh_from_db()
        versions[name] = version
    releases.set_pinned(ACTOR, acme.tenant, "pirate", True)
    json_adapter = Adapter.objects.select_related("current").get(tenant=globex.tenant, name="json")
    used(house, globex, json_adapter, 2)
    wanted = {versions["pirate"].digest, versions["json"].digest}

    before = command()["workers"][0]
    assert ({one["digest"] for one in before["missing"]}, before["slots"], before["resident"]) == (wanted, 3, [])
    done = command("--reconcile")
    assert set(done["reconciled"][0]["loaded"]) == wanted == resident(worker.url)
    shown = {one["adapters"][0]: one["why"] for one in done["workers"][0]["resident"]}
    assert shown == {"acme/pirate@1": "pinned", "globex/json@1": "recent"}
    assert residency.reconcile() == [], "nothing left to do"

    worker.kill()
    assert residency.reconcile() == []
    assert command()["workers"][0]["problem"], "a worker that is away is said to be"
    worker.start()
    assert resident(worker.url) == set()
    residency.reconcile()
    assert resident(worker.url) == wanted, "emoji is nobody's wish"

    now = timezone.now()
    AdapterVersion.objects.filter(adapter__tenant=globex.tenant).update(deleted_at=now)
    Adapter.objects.filter(tenant=globex.tenant).update(deleted_at=now)
    done = command("--reconcile")["reconciled"]
    assert done == [{"worker": "tiny", "loaded": [], "unloaded": [versions["json"].digest], "problems": []}]
    assert resident(worker.url) == {versions["pirate"].digest}


def test_one_round_at_a_time(house: House) -> None:
    other = connections.create_connection("default")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [residency._LOCK])
        assert residency.reconcile() is None
        cursor.execute("SELECT pg_advisory_unlock(%s)", [residency._LOCK])
    other.close()
    assert residency.reconcile() == []
