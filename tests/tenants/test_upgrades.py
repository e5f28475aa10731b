"""An upgrade beside gateways that run: they go on with the calls they know, and a migration queues nobody behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from tenants import batches, files
from tenants.actors import Actor
from tenants.db import Pool
from tenants.models import Batch, BatchResult, InferenceRequest, LedgerEntry
from tenants.settlement import checkpoint

ACTOR = Actor("member", "ada")
OTHER = "upgrade"
HAS_CLOSE_TWICE = "SELECT count(*) > 1 FROM pg_proc WHERE proname = 'tenants_close'"
OLD_CLOSE = """
CREATE FUNCTION tenants_close(uuid, integer, integer, integer, text, text, OUT held integer)
LANGUAGE sql AS 'SELECT 1'
"""


@pytest.fixture
def other(dsn: str, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The alias of an empty database, and the DSN is ``dsn`` with its name."""
    connections.databases[OTHER] = {**settings.DATABASES["default"], "NAME": OTHER}
    with psycopg.connect(dsn, autocommit=True) as server, django_db_blocker.unblock():
        server.execute(f"DROP DATABASE IF EXISTS {OTHER}")
        server.execute(f"CREATE DATABASE {OTHER}")
        try:
            yield OTHER
        finally:
            connections[OTHER].close()
            del connections[OTHER], connections.databases[OTHER]
            server.execute(f"DROP DATABASE {OTHER} WITH (FORCE)")


def migrate(*target: str) -> None:
    call_command("migrate", *target, database=OTHER, verbosity=0)


def ask(query: str) -> Any:
    with connections[OTHER].cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def columns() -> int:
    return int(
        ask(
            "SELECT count(*) FROM information_schema.columns "
            "WHERE table_name = 'tenants_inferencerequest' AND column_name = 'first_token_ms'"
        )
    )


def begun(actor: Any) -> Batch:
    path = files.incoming()
    path.write_bytes(b"{}\n")
    file = files.receive(ACTOR, actor.tenant, path, "in.jsonl", files.KEPT)
    batch = batches.create(ACTOR, actor.key, input_file_id=file.pk, endpoint="/v1/chat/completions")
    Batch.objects.filter(tenant=actor.tenant).update(status="in_progress")
    return batch


def test_a_migration_waits_for_nobody_long_and_does_not_go_back_half_way(other: str, dsn: str) -> None:
    migrate("tenants", "0015")
    with connections[OTHER].cursor() as cursor:
        cursor.execute("DROP FUNCTION tenants_close")
        cursor.execute(OLD_CLOSE)
    with psycopg.connect(dsn, dbname=OTHER) as reader:
        reader.execute("SET idle_in_transaction_session_timeout = '8s'")  # a migration that does wait ends as well
        reader.execute("SELECT count(*) FROM tenants_inferencerequest")  # and its transaction goes on
        began = time.monotonic()
        with pytest.raises(CommandError, match=r"in use for 2 s: .* run migrate again"):
            migrate("tenants")
        assert time.monotonic() - began < 4.5, "an admission behind it gives up after 5 s"
        assert columns() == 0, "nothing of it is done"
    migrate("tenants", "0021")
    assert columns() == 1
    assert not ask(HAS_CLOSE_TWICE), "a call that could mean two functions fails"
    assert ask("SHOW lock_timeout") == "0", "of the migrations only"

    with pytest.raises(CommandError, match=r"tenants\.0016_timings cannot be undone: .* Nothing was changed"):
        migrate("tenants", "0015")
    assert columns() == 1
    assert ask("SELECT to_regclass('tenants_payload') IS NOT NULL"), "nor what came after it"
    migrate("tenants", "0016")
    assert ask("SELECT to_regclass('tenants_payload') IS NULL"), "what can be undone is"
    migrate("tenants")
    with pytest.raises(CommandError, match=r"tenants\.0022_cached_so_far cannot be undone"):
        migrate("tenants", "0021")


def test_admissions_find_what_they_read_after_each_migration(other: str) -> None:
    """The files are today's: so each migration that brings one brings what it reads of an account."""
    standing = "SELECT count(*) FROM tenants_standing(gen_random_uuid(), NULL, NULL, now())"
    for name in ("0021", "0022", "0023"):
        migrate("tenants", name)
        assert ask(standing) == 0
    migrate("tenants", "0022")
    with connections[OTHER].cursor() as cursor:  # as 0021 left it at first
        cursor.execute("ALTER TABLE tenants_account DROP COLUMN latest_day")
    migrate("tenants", "0023")
    assert ask(standing) == 0
    migrate("tenants")
    assert ask(standing) == 0


FOREIGN_KEYS = """
SELECT count(*) FROM pg_constraint
 WHERE contype = 'f' AND conrelid IN ('tenants_inferencerequest'::regclass, 'tenants_ledgerentry'::regclass)
"""


def test_foreign_keys_go_while_tables_are_read(other: str, dsn: str) -> None:
    """Whoever reads what a constraint points to, and then comes to the requests, is not the one who gives way."""
    migrate("tenants", "0026")
    assert ask(FOREIGN_KEYS) == 6
    with psycopg.connect(dsn, dbname=other) as reader:
        reader.execute("SELECT count(*) FROM tenants_tenant")  # as an admission begins
        migrating = threading.Thread(target=lambda: (migrate("tenants"), connections[OTHER].close()))
        migrating.start()
        deadline = time.monotonic() + 10
        waits = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'ALTER TABLE tenants_inf%DROP%'"
        with psycopg.connect(dsn, dbname=other, autocommit=True) as looker:
            while looker.execute(waits).fetchone() == (0,) and time.monotonic() < deadline:
                time.sleep(0.01)
        reader.execute("SELECT count(*) FROM tenants_inferencerequest")
    migrating.join(30)
    assert ask(FOREIGN_KEYS) == 0
    migrate("tenants", "0026")
    assert ask(FOREIGN_KEYS) == 6
    migrate("tenants")
    assert ask(FOREIGN_KEYS) == 0


def test_whose_keys_were_issued_by_operators_is_known_of_those_from_before_0020(other: str) -> None:
    migrate("tenants", "0019")
    apps = MigrationExecutor(connections[OTHER]).loader.project_state(("tenants", "0019_playground_keys")).apps
    rows = {name: apps.get_model("tenants", name)._base_manager.using(OTHER) for name in ("Plan", "Tenant", "ApiKey")}
    audited = apps.get_model("tenants", "AuditEntry")._base_manager.using(OTHER)
    tenant = rows["Tenant"].create(slug="acme", plan=rows["Plan"].create(name="standard"))
    issued = [("ann", "operator", "one"), ("one", "key", "two"), ("two", "key", "three"), ("ada", "member", "own")]
    for actor, kind, key in [*issued, ("own", "key", "its"), ("one", "member", "odd")]:
        rows["ApiKey"].create(tenant=tenant, public_id=key, digest=b"", pepper_version=1)
        audited.create(tenant=tenant, actor_name=actor, actor_kind=kind, action="key.issued", subject=key)
    migrate("tenants", "0020")
    with connections[OTHER].cursor() as cursor:
        cursor.execute("SELECT public_id FROM tenants_apikey WHERE issued_by = 'operator' ORDER BY id")
        assert [name for (name,) in cursor.fetchall()] == ["one", "two", "three"]
        cursor.execute("SELECT DISTINCT issued_by FROM tenants_apikey WHERE public_id IN ('own', 'its', 'odd')")
        assert cursor.fetchall() == [("",)]


async def called(pool: Pool, call: str, *arguments: object) -> Any:
    async with pool.connection() as connection:
        row = await (await connection.execute(call, arguments)).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.usefixtures("orm_thread")
async def test_a_gateway_from_before_0016_settles(world: Any, admitted: Any, db_pool: Pool) -> None:
    request_id = await admitted(await sync_to_async(world.actor)("acme"))
    call = "CALL tenants_settle(%s, %s, %s, %s, %s, %s, NULL)"
    arguments = (request_id, 100, 30, 20, "completed", "stop")
    assert await called(db_pool, call, *arguments) == 50, "what it held"
    assert await called(db_pool, call, *arguments) is None, "once"
    [entry] = await sync_to_async(lambda: list(LedgerEntry.objects.unscoped()))()
    assert (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens) == (100, 30, 20)
    request = await sync_to_async(InferenceRequest.objects.unscoped().get)()
    assert (request.state, request.first_token_ms) == ("settled", None)


@pytest.mark.usefixtures("orm_thread")
async def test_a_gateway_from_before_0021_admits_and_settles(world: Any, db_pool: Pool, new_id: Any) -> None:
    actor, model, request_id = await sync_to_async(world.actor)("acme"), world.served(), new_id()
    call = "CALL tenants_admit(%s, %s, %s, %s, %s, %s, %s, %s, %s, NULL, NULL)"
    access = actor.access()
    asked = (request_id, access.tenant_id, access.key_id, model.base_model_id, None, 100, 50, 1, timedelta(seconds=30))
    verdict = await called(db_pool, call, *asked)
    assert (verdict["code"], verdict["max_tokens"]) == (None, 50)
    call = "CALL tenants_settle(%s, %s, %s, %s, %s, %s, %s, %s, %s, NULL)"
    assert await called(db_pool, call, request_id, 100, 30, 20, "completed", "stop", 120, 5, 90) == 50
    request = await sync_to_async(InferenceRequest.objects.unscoped().get)()
    assert (request.state, request.emitted_tokens, request.first_token_ms) == ("settled", 20, 120)


@pytest.mark.usefixtures("orm_thread")
async def test_a_gateway_from_before_0022_checkpoints(world: Any, admitted: Any, db_pool: Pool) -> None:
    mine, other = await admitted(await sync_to_async(world.actor)("acme")), UUID(int=7)
    await checkpoint(db_pool, {mine: 1}, cached={mine: 30})
    call = "CALL tenants_checkpoint(%s, %s, %s, %s, NULL)"
    lease = timedelta(seconds=90)
    assert await called(db_pool, call, [mine, other], [9, 9], lease, None) == {str(other): "lost"}
    assert await called(db_pool, call, [], [], lease, None) == {}
    request = await sync_to_async(InferenceRequest.objects.unscoped().get)()
    assert (request.emitted_tokens, request.cached_tokens) == (9, 30), "a newer gateway's word stays"
    assert request.lease_expires_at - request.admitted_at > timedelta(seconds=80)


@pytest.mark.usefixtures("orm_thread")
async def test_a_batch_runner_from_before_0016_finishes_a_line(world: Any, admitted: Any, db_pool: Pool) -> None:
    actor = await sync_to_async(world.actor)("acme")
    request_id = await admitted(actor)
    batch = await sync_to_async(begun)(actor)
    call = "CALL tenants_finish_line(%s, %s, %s, %s, %s, %s, %s, %s, %s, NULL)"
    arguments = (batch.pk, 1, True, b"{}", request_id, 100, 0, 20, "stop")
    assert await called(db_pool, call, *arguments) == "recorded"
    assert await called(db_pool, call, *arguments) == "known"
    result = await sync_to_async(BatchResult.objects.unscoped().get)()
    assert (result.request_id, bytes(result.body)) == (request_id, b"{}")
    entries = await sync_to_async(lambda: list(LedgerEntry.objects.unscoped()))()
    assert [(entry.completion_tokens, entry.outcome) for entry in entries] == [(20, "completed")]
