"""Deleting, sharing and collecting adapters."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.utils import timezone

from inference.adapter_format import content_digest, store_path
from tenants import adapter_shares, adapter_store, adapters, batches, files, intake, tasks
from tenants.access import authenticate
from tenants.actors import Actor
from tenants.adapter_files import incoming
from tenants.batch_inputs import Mentions
from tenants.db import open_pool
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import Adapter, AdapterVersion, AuditEntry, Batch, File, ModelAllowance, Release

ACTOR = Actor("key", "abc", "192.0.2.7")
NOW = timedelta(0)


@pytest.fixture
def acme(world: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings.INCOMING_DIR = tmp_path / "incoming"
    settings.ADAPTER_STORE = tmp_path / "store"
    settings.DATA_DIR = tmp_path
    monkeypatch.setattr(tasks.check_adapter, "delay", lambda pk: None)
    return world.actor("acme")


@pytest.fixture
def globex(world: Any) -> Any:
    return world.actor("globex")


def ready(acme: Any, source: Path, name: str = "pirate") -> AdapterVersion:
    """As after its check and its trial."""
    version = intake.receive(tenant=acme.tenant, name=name, source=source)
    intake.check(version.pk)
    AdapterVersion.objects.filter(adapter__tenant=acme.tenant, pk=version.pk, state="checked").update(state="ready")
    Adapter.objects.filter(tenant=acme.tenant, name=name).update(current=version)
    version.refresh_from_db()
    assert version.state == "ready", version.report
    return version


def models_of(actor: Any) -> set[str]:
    async def ask() -> set[str]:
        async with open_pool(min_size=1, max_size=1) as pool:
            return set((await authenticate(pool, actor.secret)).models)

    return async_to_sync(ask)()


def actions(tenant: Any) -> list[str]:
    return [entry.action for entry in AuditEntry.objects.filter(tenant=tenant).order_by("pk")]


def input_file(actor: Any, content: bytes) -> File:
    path = files.incoming()
    path.write_bytes(content)
    return files.receive(ACTOR, actor.tenant, path, "in.jsonl", timedelta(days=1))


def batch_of(actor: Any, file: File) -> Batch:
    return batches.create(ACTOR, actor.key, input_file_id=file.pk, endpoint="/v1/chat/completions")


# Deleting -------------------------------------------------------------------------------------------------------------


def test_a_deleted_adapter_frees_its_name_and_answers_nobody(acme: Any, make_adapter: Any) -> None:
    version = ready(acme, make_adapter())
    assert "acme/pirate" in models_of(acme)
    adapters.delete(ACTOR, acme.tenant, "pirate")
    assert models_of(acme) == {"llama-tiny"}
    assert actions(acme.tenant)[-1] == "adapter.deleted"
    for name in ("pirate", "nothing", "a\0b", "x" * 70):
        with pytest.raises(NotFound):
            adapters.delete(ACTOR, acme.tenant, name)
    kept = AdapterVersion.with_deleted.filter(adapter__tenant=acme.tenant).get()
    assert (kept.pk, kept.state, str(kept)) == (version.pk, "ready", "acme/pirate v1"), "the ledger can still name it"
    again = ready(acme, make_adapter())
    assert (again.number, again.adapter_id != version.adapter_id) == (1, True)
    assert "acme/pirate" in models_of(acme)


def test_what_refers_to_an_adapter_is_listed(
    acme: Any, globex: Any, make_adapter: Any, world: Any, new_id: Any
) -> None:
    version = ready(acme, make_adapter())
    adapter_shares.share(ACTOR, acme.tenant, "pirate", globex.tenant.pk)
    request = new_id()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_inferencerequest (id, tenant_id, key_id, base_model_id, adapter_version_id, state,"
            " prompt_tokens, max_tokens, held_cost, emitted_tokens, admitted_at, lease_expires_at)"
            " VALUES (%s, %s, %s, %s, %s, 'running', 1, 1, 0, 0, now(), now())",
            [request, globex.tenant.pk, globex.key.pk, world.base.pk, version.pk],
        )
    batch = batch_of(acme, input_file(acme, b'{"custom_id": "1", "body": {"model": "acme\\/pirate"}}\n'))
    with pytest.raises(Conflict) as refused:
        adapters.delete(ACTOR, acme.tenant, "pirate")
    assert refused.value.code == "in_use"
    for part in ("shared with globex", "1 running request", batch.pk):
        assert part in str(refused.value)
    with pytest.raises(Conflict, match=r"stands for it.*1 running request"):
        adapters.delete_version(ACTOR, acme.tenant, "pirate", 1)
    adapter_shares.withdraw(ACTOR, acme.tenant, "pirate", globex.tenant.pk)
    Batch.objects.filter(tenant=acme.tenant).update(status="completed")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenants_inferencerequest SET state = 'settled' WHERE id = %s", [request])
    adapters.delete(ACTOR, acme.tenant, "pirate")


def test_a_version_that_a_batch_names_stays(acme: Any, make_adapter: Any) -> None:
    """Its remaining lines would fail."""
    ready(acme, make_adapter())
    ready(acme, make_adapter(seed=1))
    ready(acme, make_adapter(seed=2))
    batch = batch_of(acme, input_file(acme, b'{"custom_id": "1", "body": {"model": "pirate@1"}}\n'))
    with pytest.raises(Conflict, match=f"the batch {batch.pk}"):
        adapters.delete_version(ACTOR, acme.tenant, "pirate", 1)
    adapters.delete_version(ACTOR, acme.tenant, "pirate", 2)
    Batch.objects.filter(tenant=acme.tenant).update(status="completed")
    adapters.delete_version(ACTOR, acme.tenant, "pirate", 1)


def test_each_input_is_read_once_and_while_nobody_waits(
    acme: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(acme, make_adapter())
    file = input_file(acme, b'{"body": {"model": "llama-tiny"}}\n')
    for _ in range(3):
        batch_of(acme, file)
    read, look = [], Mentions._in

    def seen(self: Mentions, path: Path) -> bool:
        read.append((path.name, connection.in_atomic_block))
        return look(self, path)

    monkeypatch.setattr(Mentions, "_in", seen)
    assert adapters.referring(adapters.find(acme.tenant, "pirate")) == []
    assert read == [(file.pk, False)]
    adapters.delete(ACTOR, acme.tenant, "pirate")
    assert read == [(file.pk, False)] * 2


def test_a_batch_that_comes_while_inputs_are_read_counts_too(
    acme: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(acme, make_adapter())
    file = input_file(acme, b'{"body": {"model": "pirate@1"}}\n')
    lock = adapters._locked

    def locked(tenant: Any, name: str) -> Adapter:
        batch_of(acme, file)
        return lock(tenant, name)

    monkeypatch.setattr(adapters, "_locked", locked)
    with pytest.raises(Conflict, match="the batch batch_"):
        adapters.delete(ACTOR, acme.tenant, "pirate")


def test_a_version_is_deleted_and_its_number_not_given_again(acme: Any, make_adapter: Any) -> None:
    ready(acme, make_adapter("one", seed=1))
    two = ready(acme, make_adapter("two", seed=2))
    adapters.delete_version(ACTOR, acme.tenant, "pirate", 1)
    for number in (1, 7, 1 << 31, 1 << 70):
        with pytest.raises(NotFound):
            adapters.delete_version(ACTOR, acme.tenant, "pirate", number)
    Adapter.objects.filter(tenant=acme.tenant).update(current=None)
    adapters.delete_version(ACTOR, acme.tenant, "pirate", 2)
    assert ready(acme, make_adapter("two", seed=2)).number == 3, "the same content is another version now"
    assert two.adapter.versions.count() == 1


def test_a_pending_version_that_is_deleted_stays_away(acme: Any, make_adapter: Any) -> None:
    version = intake.receive(tenant=acme.tenant, name="pirate", source=make_adapter())
    adapters.delete(ACTOR, acme.tenant, "pirate")
    intake.check(version.pk)
    kept = AdapterVersion.with_deleted.unscoped().get(pk=version.pk)
    assert (kept.state, kept.adapter.current) == ("pending", None)


# Sharing --------------------------------------------------------------------------------------------------------------


def test_a_share_shows_one_adapter_and_goes_again(acme: Any, globex: Any, make_adapter: Any) -> None:
    ready(acme, make_adapter("one", seed=1))
    ready(acme, make_adapter("two", seed=2), "secret")
    for _ in range(2):
        adapter_shares.share(ACTOR, acme.tenant, "pirate", globex.tenant.pk)
    assert models_of(globex) == {"llama-tiny", "acme/pirate"}
    assert [row.model for row in adapter_shares.received(globex.tenant)] == ["acme/pirate"]
    theirs = AuditEntry.objects.get(tenant=globex.tenant, action="adapter.shared")
    assert (theirs.actor_name, theirs.address) == ("the owner, acme", None), "who did it is the owner's business"
    assert actions(acme.tenant).count("adapter.shared") == 1
    adapter_shares.withdraw(ACTOR, acme.tenant, "pirate", globex.tenant.pk)
    assert models_of(globex) == {"llama-tiny"}
    with pytest.raises(NotFound):
        adapter_shares.withdraw(ACTOR, acme.tenant, "pirate", globex.tenant.pk)


def test_only_the_owner_shares_and_only_with_somebody(acme: Any, globex: Any, make_adapter: Any) -> None:
    ready(acme, make_adapter())
    with pytest.raises(NotFound, match="adapter"):
        adapter_shares.share(ACTOR, globex.tenant, "pirate", uuid4())
    with pytest.raises(NotFound, match="account"):
        adapter_shares.share(ACTOR, acme.tenant, "pirate", uuid4())
    with pytest.raises(Invalid):
        adapter_shares.share(ACTOR, acme.tenant, "pirate", acme.tenant.pk)


def test_a_new_adapter_of_an_old_name_has_no_old_shares(acme: Any, globex: Any, make_adapter: Any) -> None:
    ready(acme, make_adapter("one", seed=1))
    adapter_shares.share(ACTOR, acme.tenant, "pirate", globex.tenant.pk)
    # As when an operator allows it in the very moment in which it is deleted.
    Adapter.objects.filter(tenant=acme.tenant).update(deleted_at=timezone.now(), current=None)
    ready(acme, make_adapter("two", seed=2))
    assert models_of(globex) == {"llama-tiny"}
    assert list(adapter_shares.received(globex.tenant)) == []


# Collecting -----------------------------------------------------------------------------------------------------------


def stored(version: AdapterVersion) -> Path:
    from django.conf import settings

    return store_path(Path(settings.ADAPTER_STORE), version.digest)


def test_unused_content_goes_after_its_grace(acme: Any, globex: Any, make_adapter: Any) -> None:
    source = make_adapter()
    one, same = ready(acme, source), ready(globex, source)
    assert stored(one) == stored(same)
    adapters.delete(ACTOR, acme.tenant, "pirate")
    assert adapter_store.collect(NOW)["contents"] == 0, "another tenant has the same content"
    adapters.delete(ACTOR, globex.tenant, "pirate")
    assert adapter_store.collect()["contents"] == 0, "not before a day has passed"
    assert adapter_store.collect(NOW) == {"contents": 1, "bytes": one.stored_bytes, "left_behind": 0}
    assert not stored(one).exists()
    assert adapter_store.collect(NOW)["contents"] == 0


def test_what_waits_for_its_check_is_not_collected(acme: Any, make_adapter: Any) -> None:
    source = make_adapter()
    one = ready(acme, source)
    adapters.delete(ACTOR, acme.tenant, "pirate")
    waiting = intake.receive(tenant=acme.tenant, name="again", source=source)
    assert adapter_store.collect(NOW) == {"contents": 0, "bytes": 0, "left_behind": 0}
    assert stored(one).exists()
    assert incoming(waiting).exists()


def test_what_killed_processes_left_is_removed(
    acme: Any, make_adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = ready(acme, make_adapter())
    store, waiting = tmp_path / "store", tmp_path / "incoming"
    for path in (store / ".copy-1", store / f".collected-{version.digest}", waiting / "copy-2", waiting / "987654321"):
        path.mkdir()
        (path / "file").write_text("x")
    (store / "ab").mkdir(exist_ok=True)
    (store / "ab" / "notes").mkdir()
    assert adapter_store.collect(NOW)["left_behind"] == 0, "perhaps somebody is at work in them"
    monkeypatch.setattr(adapter_store, "AT_WORK", NOW)
    assert adapter_store.collect(NOW) == {"contents": 0, "bytes": 0, "left_behind": 4}
    assert (store / "ab" / "notes").exists(), "what this program did not put there is left alone"
    assert stored(version).exists()


def test_collecting_beside_intake_loses_nothing(acme: Any, make_adapter: Any) -> None:
    """The same content comes and goes while a collector without any grace runs all the time."""
    source, stop, problems = make_adapter(), threading.Event(), []

    def collecting() -> None:
        try:
            while not stop.is_set():
                adapter_store.collect(NOW)
        except Exception as error:
            problems.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=collecting)
    thread.start()
    try:
        for _ in range(25):
            version = ready(acme, source)
            assert content_digest(stored(version)) == version.digest
            adapters.delete(ACTOR, acme.tenant, "pirate")
    finally:
        stop.set()
        thread.join()
    assert problems == []


def test_a_collector_killed_half_way_is_run_again(
    acme: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = ready(acme, make_adapter())
    adapters.delete(ACTOR, acme.tenant, "pirate")
    monkeypatch.setattr(adapter_store.shutil, "rmtree", lambda *_, **__: None)  # killed before it removed it
    adapter_store.collect(NOW)
    monkeypatch.undo()
    monkeypatch.setattr(adapter_store, "AT_WORK", NOW)
    assert not stored(version).exists()
    assert adapter_store.collect(NOW)["left_behind"] == 1


def test_releases_of_deleted_versions_stay_on_record(acme: Any, make_adapter: Any) -> None:
    ready(acme, make_adapter())
    count = Release.objects.filter(tenant=acme.tenant).count()
    adapters.delete(ACTOR, acme.tenant, "pirate")
    assert Release.objects.filter(tenant=acme.tenant).count() == count
    assert ModelAllowance.objects.filter(tenant=acme.tenant).exists()


def test_by_its_whole_name(acme: Any, make_adapter: Any) -> None:
    adapter = ready(acme, make_adapter()).adapter
    assert adapters.named(str(adapter)) == adapter
    for wrong in ("", "pirate", "acme/", "/pirate", "acme/no", "no/pirate", "acme/pirate/x", "a\0/x", "x/a\0"):
        with pytest.raises(NotFound):
            adapters.named(wrong)
        with pytest.raises(Invalid, match="owner/name") as refused:
            adapters.named(wrong, "adapter")
        assert refused.value.param == "adapter"
    adapters.delete(ACTOR, acme.tenant, adapter.name)
    with pytest.raises(NotFound):
        adapters.named(str(adapter))
