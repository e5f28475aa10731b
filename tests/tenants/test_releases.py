"""What an adapter's name stands for: promotion, canary, rollback; at once, and what gateways make of it."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction

from tenants import adapters, releases
from tenants.access import Canary, authenticate
from tenants.actors import Actor
from tenants.admission import admit
from tenants.db import Pool
from tenants.errors import Conflict, Invalid, ModelNotFound, NotFound
from tenants.models import Adapter, AdapterAllowance, AdapterVersion, AuditEntry, InferenceRequest, Release
from tenants.versions import is_version, version_of

ANN = Actor("member", "ann")


@pytest.fixture
def acme(world: Any) -> Any:
    """With acme/pirate, whose version 1 is current, 2 and 3 are ready and 4 is not."""
    actor = world.actor("acme")
    adapter = world.adapter(actor.tenant, "pirate")
    for number, state in ((2, "ready"), (3, "ready"), (4, "checked")):
        AdapterVersion.objects.create(adapter=adapter, number=number, state=state, digest=str(number) * 64)
    return actor


def stands_for(actor: Any) -> tuple[int | None, int | None, int]:
    adapter = adapters.find(actor.tenant, "pirate")
    current, canary = adapter.current, adapter.canary
    return (current and current.number, canary and canary.number, adapter.canary_percent)


def test_a_rollback_says_from_where(acme: Any) -> None:
    for number in (2, 3):
        releases.promote(ANN, acme.tenant, "pirate", number)
    seen = releases.latest_number(adapters.find(acme.tenant, "pirate"))
    releases.rollback(ANN, acme.tenant, "pirate", expected=seen)
    with pytest.raises(Conflict) as refused:
        releases.rollback(ANN, acme.tenant, "pirate", expected=seen)
    assert refused.value.code == "release_outdated"
    assert stands_for(acme) == (2, None, 0)
    releases.rollback(ANN, acme.tenant, "pirate")
    assert stands_for(acme) == (1, None, 0), "who does not say goes back from the latest, whichever it is"


def test_promotion_and_rollback_go_back_step_by_step(acme: Any) -> None:
    tenant = acme.tenant
    for number in (2, 3):
        releases.promote(ANN, tenant, "pirate", number)
    assert releases.promote(ANN, tenant, "pirate", 3).number == 3, "nothing to do, nothing written"
    releases.rollback(ANN, tenant, "pirate")
    assert stands_for(acme) == (2, None, 0)
    releases.rollback(ANN, tenant, "pirate")
    assert stands_for(acme) == (1, None, 0)
    with pytest.raises(Conflict) as nothing:
        releases.rollback(ANN, tenant, "pirate")
    assert nothing.value.code == "no_previous_release"
    releases.promote(ANN, tenant, "pirate", 3)
    releases.rollback(ANN, tenant, "pirate")
    assert stands_for(acme) == (1, None, 0), "to what was there before, not to what was once promoted"
    kinds = [(row.number, row.kind, row.version.number) for row in releases.history(adapters.find(tenant, "pirate"))]
    assert kinds == [
        (7, "rollback", 1),
        (6, "promote", 3),
        (5, "rollback", 1),
        (4, "rollback", 2),
        (3, "promote", 3),
        (2, "promote", 2),
        (1, "automatic", 1),
    ]
    entries = AuditEntry.objects.filter(tenant=tenant, subject="acme/pirate")
    assert [(e.action, e.before, e.after) for e in entries][:2] == [
        ("adapter.rolled_back", {"version": 3}, {"version": 1}),
        ("adapter.promoted", {"version": 1}, {"version": 3}),
    ]
    assert {entry.actor_name for entry in entries} == {"ann"}


def test_a_canary_grows_is_promoted_and_taken_back(acme: Any) -> None:
    tenant = acme.tenant
    releases.promote(ANN, tenant, "pirate", 2)
    for percent in (10, 50):
        releases.set_canary(ANN, tenant, "pirate", 3, percent)
        assert stands_for(acme) == (2, 3, percent)
    releases.rollback(ANN, tenant, "pirate")
    assert stands_for(acme) == (2, None, 0), "one click ends the canary, whatever it had grown to"
    releases.set_canary(ANN, tenant, "pirate", 3, 5)
    releases.promote(ANN, tenant, "pirate")
    assert stands_for(acme) == (3, None, 0)
    releases.rollback(ANN, tenant, "pirate")
    assert stands_for(acme) == (2, None, 0)
    releases.set_canary(ANN, tenant, "pirate", 3, 5)
    releases.set_canary(ANN, tenant, "pirate", 3, 0)
    assert stands_for(acme) == (2, None, 0)
    releases.rollback(ANN, tenant, "pirate")
    assert stands_for(acme) == (1, None, 0)


@pytest.mark.parametrize(
    ("number", "percent", "code"),
    [(4, 10, "not_ready"), (1, 10, "already_current"), (2, 0, "no_canary")],
)
def test_what_can_be_no_canary(acme: Any, number: int, percent: int, code: str) -> None:
    with pytest.raises(Conflict) as refused:
        releases.set_canary(ANN, acme.tenant, "pirate", number, percent)
    assert refused.value.code == code
    for wrong in (-1, 101):
        with pytest.raises(Invalid):
            releases.set_canary(ANN, acme.tenant, "pirate", 2, wrong)
    with pytest.raises(Conflict):
        releases.promote(ANN, acme.tenant, "pirate")
    with pytest.raises(Conflict):
        releases.promote(ANN, acme.tenant, "pirate", 4)
    with pytest.raises(NotFound):
        releases.promote(ANN, acme.tenant, "pirate", 5)
    assert stands_for(acme) == (1, None, 0)


def test_a_stranger_releases_nothing(acme: Any, world: Any) -> None:
    stranger = world.actor("globex").tenant
    calls: list[Any] = [
        lambda name: releases.promote(ANN, stranger, name, 2),
        lambda name: releases.set_canary(ANN, stranger, name, 2, 10),
        lambda name: releases.rollback(ANN, stranger, name),
        lambda name: releases.set_automatic(ANN, stranger, name, False),
        lambda name: releases.set_pinned(ANN, stranger, name, True),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="There is no adapter 'pirate'"):
            call("pirate")
        with pytest.raises(NotFound):
            call("pi\0rate")
    assert stands_for(acme) == (1, None, 0)


def test_deleted_versions_are_passed_over(acme: Any) -> None:
    tenant = acme.tenant
    for number in (2, 3):
        releases.promote(ANN, tenant, "pirate", number)
    adapters.delete_version(ANN, tenant, "pirate", 2)
    releases.rollback(ANN, tenant, "pirate")
    assert stands_for(acme) == (1, None, 0)


def test_new_versions_are_promoted_unless_told_otherwise(acme: Any) -> None:
    tenant, adapter = acme.tenant, adapters.find(acme.tenant, "pirate")

    def ready(number: int) -> None:
        version = AdapterVersion.objects.create(adapter=adapter, number=number, state="ready", digest=f"{number:064}")
        with transaction.atomic():
            releases.accepted(ANN, version)

    ready(6)
    ready(5)
    assert stands_for(acme) == (6, None, 0), "a late one does not move the name back"
    releases.set_canary(ANN, tenant, "pirate", 2, 10)
    ready(7)
    assert stands_for(acme) == (6, 2, 10), "nor does anything while a canary runs"
    releases.rollback(ANN, tenant, "pirate")
    releases.set_automatic(ANN, tenant, "pirate", False)
    ready(8)
    assert stands_for(acme) == (6, None, 0)


def test_releases_are_written_once(acme: Any) -> None:
    releases.promote(ANN, acme.tenant, "pirate", 2)
    with pytest.raises(IntegrityError, match="written once"), transaction.atomic():
        Release.objects.filter(tenant=acme.tenant).update(kind="canary")
    with pytest.raises(IntegrityError, match="canary_has_a_share"), transaction.atomic():
        Adapter.objects.filter(tenant=acme.tenant).update(canary_percent=10)


def test_releases_at_the_same_time_stand_in_line(acme: Any) -> None:
    start, failed = threading.Barrier(8), []

    def act(number: int) -> None:
        start.wait()
        try:
            for _ in range(5):
                releases.promote(ANN, acme.tenant, "pirate", number)
                releases.set_canary(ANN, acme.tenant, "pirate", 5 - number, 10)
        except Conflict:
            pass  # the other had just promoted what was to be the canary
        except Exception as error:
            failed.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=(2 + n % 2,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    rows = list(Release.objects.filter(tenant=acme.tenant).order_by("number"))
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    last = rows[-1]
    adapter = adapters.find(acme.tenant, "pirate")
    shown = (adapter.current_id, adapter.canary_id, adapter.canary_percent)
    assert shown == (last.version_id, last.canary_id, last.canary_percent)


@pytest.mark.parametrize("percent", [0, 1, 10, 50, 100])
def test_the_share_is_what_was_asked_for(percent: int) -> None:
    canary = Canary(percent, 77, "d" * 64)
    taken = sum(canary.takes(f"request-{n}") for n in range(20_000)) / 20_000
    # four standard deviations of a binomial of 20,000
    assert abs(taken - percent / 100) <= 4 * (percent / 100 * (1 - percent / 100) / 20_000) ** 0.5
    grown = Canary(min(percent + 20, 100), 77, "d" * 64)
    assert all(grown.takes(f"user-{n}") for n in range(1000) if canary.takes(f"user-{n}")), "whoever has it keeps it"


@pytest.mark.usefixtures("orm_thread")
async def test_a_gateway_splits_by_key_and_the_ledger_says_who_answered(acme: Any, db_pool: Pool, new_id: Any) -> None:
    await sync_to_async(releases.set_canary)(ANN, acme.tenant, "pirate", 2, 30)
    access = await authenticate(db_pool, acme.secret)
    assert access.resolve("pirate").canary is not None
    assert access.resolve("pirate").adapter_digest != "2" * 64, "without a key, the current version"
    digests = Counter(access.resolve("acme/pirate", f"user-{n}").adapter_digest for n in range(1000))
    assert 230 < digests["2" * 64] < 370
    assert len({access.resolve("pirate", "ann").adapter_digest for _ in range(100)}) == 1, "one user, one version"
    lucky = next(f"user-{n}" for n in range(1000) if access.resolve("pirate", f"user-{n}").adapter_digest == "2" * 64)
    request = new_id()
    model = access.resolve("pirate", lucky)
    await admit(db_pool, request_id=request, access=access, model=model, prompt_tokens=1, max_tokens=1)

    def answered() -> Any:
        row = InferenceRequest.objects.select_related("adapter_version").get(tenant=acme.tenant, pk=request)
        return row.adapter_version.number

    assert await sync_to_async(answered)() == 2


@pytest.mark.usefixtures("orm_thread")
async def test_one_version_by_its_number(acme: Any, world: Any, db_pool: Pool, new_id: Any) -> None:
    def share() -> Any:
        globex = world.actor("globex")
        AdapterAllowance.objects.create(tenant=globex.tenant, adapter=adapters.find(acme.tenant, "pirate"))
        return globex

    globex = await sync_to_async(share)()
    access = await authenticate(db_pool, acme.secret)
    for name in ("acme/pirate@3", "pirate@3"):
        found = await version_of(db_pool, access, name)
        assert (found.id, found.adapter_digest, found.base) == ("acme/pirate@3", "3" * 64, "llama-tiny")
        assert is_version(name)
    admitted = await admit(db_pool, request_id=new_id(), access=access, model=found, prompt_tokens=1, max_tokens=1)
    assert admitted.max_tokens == 1
    wrong = ("pirate@4", "pirate@9", "pirate@0", "pirate@", "pirate@-1", "pirate@1@2", "pirate@1e3", "@1", "x@1")
    for name in (*wrong, "globex/pirate@1", "pirate@99999999999", "pi\0rate@1", "llama-tiny@1", "pirate@२"):
        with pytest.raises(ModelNotFound):
            await version_of(db_pool, access, name)
    stranger = await authenticate(db_pool, globex.secret)
    assert "acme/pirate" in stranger.models, "shared"
    for name in ("acme/pirate@1", "pirate@1"):
        with pytest.raises(ModelNotFound):
            await version_of(db_pool, stranger, name)


@pytest.mark.usefixtures("orm_thread")
async def test_a_version_is_kept_from_whom_its_adapter_is_kept_from(world: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(lambda: world.actor("acme", member_limits={}))()
    pirate = await sync_to_async(world.adapter)(actor.tenant, "pirate")
    access = await authenticate(db_pool, actor.secret)
    key, member = actor.key, actor.key.member
    for holder, only, usable in ((key, [], False), (key, [pirate.pk], True), (member, [], False), (member, None, True)):
        holder.only_adapters = only
        await sync_to_async(holder.save)()
        with nullcontext() if usable else pytest.raises(ModelNotFound):
            assert (await version_of(db_pool, access, "pirate@1")).id == "acme/pirate@1"
