"""Files and batches without a gateway: quotas, who stands in whose way, expiry, commands."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.utils import timezone

from tenants import batch_work, batches, files
from tenants.actors import Actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import ApiKey, AuditEntry, Batch, BatchResult, File, Tenant
from tests.tenants.conftest import make_tenant

ACTOR = Actor("command", "tests")
CHAT = "/v1/chat/completions"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _folder(settings: Any, tmp_path: Path) -> None:
    settings.FILES_DIR = tmp_path


@pytest.fixture
def key(acme: Tenant) -> ApiKey:
    return ApiKey.issue(acme)[0]


def upload(tenant: Tenant, content: bytes = b"{}\n") -> File:
    path = files.incoming()
    path.write_bytes(content)
    return files.receive(ACTOR, tenant, path, "in.jsonl", files.KEPT)


def create(key: ApiKey, file: File) -> Batch:
    return batches.create(ACTOR, key, input_file_id=file.pk, endpoint=CHAT)


def at_once(*works: Any) -> list[Any]:
    """What each returned or raised; all begin together."""
    barrier, results = threading.Barrier(len(works)), []

    def run(work: Any) -> None:
        barrier.wait()
        try:
            results.append(work())
        except Exception as error:
            results.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# Quotas ---------------------------------------------------------------------------------------------------------------


def test_of_uploads_at_once_exactly_the_quota_is_taken_in(acme: Tenant, settings: Any) -> None:
    settings.MAX_FILES = 3
    results = at_once(*(lambda: upload(acme) for _ in range(8)))
    assert sum(isinstance(result, File) for result in results) == 3
    assert {result.code for result in results if isinstance(result, Conflict)} == {"too_many_files"}
    assert File.objects.filter(tenant=acme).count() == 3
    assert upload(make_tenant("globex")).pk


def test_bytes_are_counted_over_all_files(acme: Tenant, settings: Any) -> None:
    settings.MAX_FILES_BYTES = 100
    results = at_once(*(lambda: upload(acme, b"x" * 40) for _ in range(5)))
    assert sum(isinstance(result, File) for result in results) == 2
    with pytest.raises(Conflict, match="20 are left") as refused:
        upload(acme, b"x" * 21)
    assert (refused.value.param, refused.value.code) == ("file", "file_quota_exceeded")
    files.delete(ACTOR, File.objects.filter(tenant=acme).first())
    upload(acme, b"x" * 60)


def test_a_suspended_account_uploads_and_begins_nothing(acme: Tenant, key: ApiKey) -> None:
    file = upload(acme)
    Tenant.objects.filter(pk=acme.pk).update(state="suspended")
    for attempt in (lambda: upload(acme), lambda: create(key, file)):
        with pytest.raises(Forbidden):
            attempt()


def test_unfinished_batches_have_a_limit(acme: Tenant, key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_UNFINISHED", 2)
    file = upload(acme)
    results = at_once(*(lambda: create(key, file) for _ in range(6)))
    assert sum(isinstance(result, Batch) for result in results) == 2
    assert {result.code for result in results if isinstance(result, Conflict)} == {"too_many_batches"}


def test_above_its_limits_a_tenant_begins_no_batch(acme: Tenant, key: ApiKey, settings: Any) -> None:
    file = upload(acme, b"x" * 100)
    settings.MAX_FILES, settings.MAX_FILES_BYTES = 1, 100
    assert create(key, file)
    settings.MAX_FILES_BYTES = 99
    with pytest.raises(Conflict, match="have 100 bytes, above your limit of 99") as refused:
        create(key, file)
    assert refused.value.code == "file_quota_exceeded"
    settings.MAX_FILES, settings.MAX_FILES_BYTES = 1, 1000
    path = files.incoming()
    path.write_bytes(b"x")
    files.keep(acme, path, "out", File.Purpose.BATCH_OUTPUT, files.KEPT)
    with pytest.raises(Conflict, match="2 files") as refused:
        create(key, file)
    assert refused.value.code == "too_many_files"


# Deletion and expiry --------------------------------------------------------------------------------------------------


def test_a_file_is_deleted_once(acme: Tenant) -> None:
    file = upload(acme)
    results = at_once(*(lambda: files.delete(ACTOR, file) for _ in range(4)))
    assert sum(isinstance(result, NotFound) for result in results) == 3
    assert AuditEntry.objects.filter(tenant=acme, action="file.deleted").count() == 1
    assert not files.content_path(file).exists()


def test_a_file_is_never_deleted_under_a_new_batch(acme: Tenant, key: ApiKey) -> None:
    for _ in range(10):
        file = upload(acme)
        made, deleted = sorted(
            at_once(lambda file=file: create(key, file), lambda file=file: files.delete(ACTOR, file)),
            key=lambda result: not isinstance(result, Batch | NotFound),
        )
        if isinstance(made, Batch):
            assert isinstance(deleted, Conflict)
            assert files.content_path(file).exists()
            batches.cancel(ACTOR, acme, made.pk)
        else:
            assert deleted is None
            assert not files.content_path(file).exists()


def test_what_a_batch_wrote_is_no_input(acme: Tenant, key: ApiKey) -> None:
    path = files.incoming()
    path.write_bytes(b"x")
    output = files.keep(acme, path, "out", File.Purpose.BATCH_OUTPUT, files.KEPT)
    with pytest.raises(Invalid, match="purpose"):
        create(key, output)
    with pytest.raises(NotFound):
        batches.create(ACTOR, ApiKey.issue(make_tenant("globex"))[0], input_file_id=output.pk, endpoint=CHAT)


def test_expired_files_are_gone_at_once_and_collected_later(acme: Tenant, key: ApiKey) -> None:
    kept, expired, read = upload(acme), upload(acme), upload(acme)
    batch = create(key, read)
    File.objects.filter(tenant=acme).exclude(pk=kept.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(NotFound):
        files.find(acme, expired.pk)
    assert files.collect() == 1
    assert not files.content_path(expired).exists()
    assert files.content_path(read).exists()
    Batch.objects.filter(tenant=acme, pk=batch.pk).update(status="completed")
    assert files.collect() == 1
    assert [file.pk for file in File.objects.filter(tenant=acme)] == [kept.pk]
    assert files.content_path(kept).exists()


def test_content_that_nobody_knows_is_collected_after_a_day(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = upload(acme)
    orphan, half = files.content_path(kept).with_name("file-dead"), files.incoming()
    for path in (orphan, half):
        path.write_bytes(b"x")
    assert files.collect() == 0
    later = time.time() + 25 * 3600
    monkeypatch.setattr(files.time, "time", lambda: later)
    assert files.collect() == 2
    assert files.content_path(kept).exists()
    assert not orphan.exists()
    assert not half.exists()


def test_content_is_looked_up_many_at_once(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    kept = [upload(acme) for _ in range(7)]
    orphans = [files.content_path(kept[0]).with_name(f"file-dead-{n}") for n in range(3)]
    for path in orphans:
        path.write_bytes(b"x")
    monkeypatch.setattr(files, "_AT_ONCE", 5)
    later = time.time() + 25 * 3600
    monkeypatch.setattr(files.time, "time", lambda: later)
    with django_assert_num_queries(1 + 2):
        assert files.collect() == 3
    assert all(files.content_path(file).exists() for file in kept)
    assert not any(path.exists() for path in orphans)


def test_content_is_for_this_user_alone(acme: Tenant) -> None:
    place = files.content_path(upload(acme))
    assert place == Path(settings.FILES_DIR) / str(acme.pk) / place.name
    assert os.stat(place.parent).st_mode & 0o077 == 0


# Whose turn it is -----------------------------------------------------------------------------------------------------


def test_tenants_take_turns(acme: Tenant, key: ApiKey) -> None:
    other, _ = ApiKey.issue(make_tenant("globex"))
    mine, theirs = upload(acme), upload(other.tenant)
    many = [create(key, mine).pk for _ in range(3)]
    one = create(other, theirs).pk
    turns = []
    for _ in range(4):
        batch = batch_work.claim("r", [])
        assert batch is not None
        turns.append(batch.pk)
    assert turns == [many[0], one, many[1], many[2]]
    assert batch_work.claim("r", []) is None


def test_of_runners_at_once_each_takes_another(acme: Tenant, key: ApiKey) -> None:
    file = upload(acme)
    for _ in range(4):
        create(key, file)
    taken = at_once(*(lambda n=n: batch_work.claim(f"r{n}", []) for n in range(6)))
    ids = [batch.pk for batch in taken if batch is not None]
    assert len(ids) == len(set(ids)) == 4


def test_a_batch_that_is_held_or_rests_is_nobody_elses(acme: Tenant, key: ApiKey) -> None:
    batch = create(key, upload(acme))
    assert batch_work.claim("a", [acme.pk]) is None
    assert batch_work.claim("a", []) == batch
    assert batch_work.claim("b", []) is None
    assert not batch_work.waiting()
    assert batch_work.renew("b", [batch.pk]) == {}
    assert batch_work.renew("a", [batch.pk]) == {batch.pk: "validating"}
    batch_work.release("a", batch, timezone.now() + timedelta(hours=1))
    assert batch_work.claim("b", []) is None
    batches.cancel(ACTOR, acme, batch.pk)
    assert batch_work.waiting()
    assert batch_work.claim("b", []) == batch
    assert not batch_work.begin("a", batch, 3)
    assert not batch_work.finish("a", batch, Batch.Status.CANCELLED, None, None)


def test_what_is_to_be_cut_off_is_anybodys(acme: Tenant, key: ApiKey) -> None:
    file = upload(acme)
    cancelled, running, expired = (create(key, file) for _ in range(3))
    batches.cancel(ACTOR, acme, cancelled.pk)
    Batch.objects.filter(tenant=acme, pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert batch_work.claim("a", [acme.pk]) is None
    assert batch_work.claim("a", None, [cancelled.pk, expired.pk]) is None, "it has them"
    assert [batch_work.claim("a", None) for _ in range(3)] == [cancelled, expired, None]
    assert batch_work.claim("a", []) == running


def test_doctor_finds_a_batch_that_nobody_takes_up(acme: Tenant, key: ApiKey) -> None:
    from gateway.diagnosis import batches as look

    file = upload(acme)
    first, second = create(key, file), create(key, file)
    assert look().ok
    long_ago = timezone.now() - timedelta(minutes=5)
    Batch.objects.filter(tenant=acme).update(created_at=long_ago)
    assert not look().ok
    assert batch_work.claim("r", []) == first
    assert look().ok, "the second one waits for its turn"
    Batch.objects.filter(tenant=acme).update(held_until=long_ago, worked_at=long_ago)
    assert not look().ok
    Batch.objects.filter(tenant=acme).update(
        resume_at=timezone.now() + timedelta(hours=1), expires_at=second.expires_at
    )
    assert look().ok, "both rest"


# A line, once ---------------------------------------------------------------------------------------------------------


def test_a_line_is_finished_once_and_only_while_the_batch_runs(acme: Tenant, key: ApiKey) -> None:
    batch = create(key, upload(acme))

    def finish(line: int = 1) -> str:
        with connection.cursor() as cursor:
            cursor.execute(
                "CALL tenants_finish_line(%s, %s, false, '{}', NULL, 0, 0, 0, '', NULL, NULL, NULL, NULL)",
                [batch.pk, line],
            )
            return cursor.fetchone()[0]

    assert finish() == "lost"
    Batch.objects.filter(tenant=acme).update(status="in_progress")
    assert sorted(at_once(*(finish for _ in range(6)))) == ["known"] * 5 + ["recorded"]
    batch.refresh_from_db()
    assert (batch.failed, BatchResult.objects.filter(batch__tenant=acme).count()) == (1, 1)
    batches.cancel(ACTOR, acme, batch.pk)
    assert finish(2) == "lost"


# Commands -------------------------------------------------------------------------------------------------------------


def command(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*words, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    if words[0] in {"files", "batches"}:
        said = io.StringIO()
        call_command(*words, stdout=said)
        assert found["tenant"] in said.getvalue()
    return found


def test_commands_show_cancel_and_delete(acme: Tenant, key: ApiKey) -> None:
    file = upload(acme)
    batch = create(key, file)
    (shown,) = command("files", "acme")["files"]
    assert (shown["id"], shown["bytes"], shown["filename"]) == (file.pk, 3, "in.jsonl")
    (row,) = command("batches", "acme", "--unfinished")["batches"]
    assert (row["id"], row["status"], row["key"]) == (batch.pk, "validating", key.public_id)
    with pytest.raises(CommandError, match=batch.pk):
        command("delete_file", "acme", "--file", file.pk)
    make_tenant("globex")
    for words in (("cancel_batch", "globex", "--batch", batch.pk), ("delete_file", "globex", "--file", file.pk)):
        with pytest.raises(CommandError, match="no"):
            command(*words)
    assert command("cancel_batch", "acme", "--batch", batch.pk)["status"] == "cancelling"
    Batch.objects.filter(tenant=acme).update(status="cancelled")
    assert command("delete_file", "acme", "--file", file.pk)["deleted"] is True
    assert command("batches", "acme", "--unfinished")["batches"] == []
    actors = AuditEntry.objects.filter(tenant=acme, action__in=("batch.cancelled", "file.deleted"))
    assert set(actors.values_list("actor_kind", flat=True)) == {"command"}
