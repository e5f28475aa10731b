"""What ``doctor`` looks at. Each check says what it found and, when something is wrong, what to do."""

from __future__ import annotations

import asyncio
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Min
from django.db.models.functions import Now

from fleet.models import Worker
from gateway.celery_diagnosis import processes
from gateway.finding import Finding
from inference.client import WorkerClient
from inference.errors import InferenceError
from inference.model_store import fingerprint_of
from tenants import batch_work
from tenants.models import BaseModel, InferenceRequest

WORKER_OF_UP = "local"
"""As ``up`` registers its own worker."""

LEAST_FREE_BYTES = 2 << 30
MOST_CLOCK_SKEW_SECONDS = 5.0
MOST_BATCH_WAIT_SECONDS = 60
MOST_LEASE_OVERDUE_SECONDS = 60.0


def examine() -> list[Finding]:
    """Every check, in the order in which one depends on another."""
    database = _database()
    findings = [database, _valkey(), _keys(), _disk()]
    migrated = False
    if database.ok:
        migrations = _migrations()
        migrated = migrations.ok
        findings.append(migrations)
        if migrated:
            findings += [_clock(), *_models(), *workers(), leases(), batches()]
    else:
        findings.append(
            Finding("migrations, models and workers", False, "not looked at without a database", "See above.")
        )
    return [*findings, *processes(migrated)]


def _database() -> Finding:
    advice = "Start everything with `manage.py up`, or set DATABASE_URL to a server that runs."
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            version = cursor.fetchone()[0]
    except DatabaseError as error:
        return Finding("database", False, _first_line(error), advice)
    kind = "embedded" if settings.EMBEDDED_POSTGRES else "DATABASE_URL"
    return Finding("database", True, f"PostgreSQL {version} ({kind})")


def _valkey() -> Finding:
    advice = "Start everything with `manage.py up`, or set REDIS_URL to a server that runs. Inference goes on without."
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=3, socket_timeout=3) as client:
            client.ping()
            info = client.info("server")
    except redis.RedisError as error:
        return Finding("valkey", False, _first_line(error), advice)
    version = info.get("valkey_version") or info.get("redis_version")
    return Finding("valkey", True, f"version {version} ({'embedded' if settings.EMBEDDED_VALKEY else 'REDIS_URL'})")


def _keys() -> Finding:
    path: Path = settings.GRANT_PRIVATE_KEY_FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        settings.GRANT_PUBLIC_KEY_FILE.stat()
    except OSError as error:
        return Finding("keys", False, f"{error.filename}: {error.strerror}", "Restore the file from your backup.")
    if mode & 0o077:
        return Finding("keys", False, f"{path} is readable by others (mode {mode:o})", f"chmod 600 {path}")
    return Finding("keys", True, f"grant keys in place, pepper version {max(settings.KEY_PEPPERS)}")


def _disk() -> Finding:
    free = shutil.disk_usage(settings.DATA_DIR).free
    found = f"{free / (1 << 30):.1f} GiB free in {settings.DATA_DIR}"
    advice = "Make room, or move the data with LORAPLEX_DATA_DIR."
    return Finding("disk", True, found) if free >= LEAST_FREE_BYTES else Finding("disk", False, found, advice)


def _migrations() -> Finding:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        names = ", ".join(f"{migration.app_label}.{migration.name}" for migration, _ in plan[:3])
        return Finding("migrations", False, f"{len(plan)} not applied ({names} …)", "Run `manage.py migrate`.")
    return Finding("migrations", True, "all applied")


def _clock() -> Finding:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        skew = abs(float(cursor.fetchone()[0]) - time.time())
    if skew > MOST_CLOCK_SKEW_SECONDS:
        found = f"{skew:.0f} s apart from the database's clock"
        return Finding("clock", False, found, "Set both by NTP: grants and leases expire by them.")
    return Finding("clock", True, f"{skew:.1f} s apart from the database's")


def _models() -> Iterator[Finding]:
    models = list(BaseModel.objects.all())
    if not models:
        advice = "Run `manage.py up`, or register_model --directory DIR."
        yield Finding("models", False, "no base model is registered", advice)
    for model in models:
        advice = "Restore the directory from your backup or fetch the model again."
        yield _guarded(f"model {model.name}", advice, lambda model=model: _model(model))  # type: ignore[misc]


def _model(model: BaseModel) -> Finding:
    fingerprint = fingerprint_of(Path(model.directory))
    name = f"model {model.name}"
    if fingerprint != model.fingerprint:
        advice = f"Restore the directory, or run register_model --directory {model.directory} --name {model.name}."
        return Finding(name, False, f"{model.directory} has another fingerprint than was registered", advice)
    return Finding(name, True, f"fingerprint {fingerprint[:12]}…, context {model.context_length}")


def workers() -> Iterator[Finding]:
    """Whether each registered worker computes what it is registered for."""
    found = list(Worker.objects.select_related("base_model"))
    if not found:
        advice = "Start one with `manage.py worker` and tell the gateways with register_worker."
        yield Finding("workers", False, "no worker is registered", advice)
    for worker in found:
        yield _guarded(f"worker {worker.name}", _again(worker), lambda worker=worker: _worker(worker))  # type: ignore[misc]


def _worker(worker: Worker) -> Finding:
    health = asyncio.run(_health(worker.url))
    name = f"worker {worker.name}"
    served = health.get("fingerprint")
    if served is not None and served != worker.base_model.fingerprint:
        advice = f"Start it with --model {worker.base_model.directory}; no request goes there until then."
        return Finding(name, False, f"{worker.url} serves another model than {worker.base_model.name}", advice)
    if worker.state == Worker.State.ACTIVE:
        return Finding(name, True, f"{worker.url} computes, {worker.base_model.name}")
    return _resting(worker)


def _resting(worker: Worker) -> Finding:
    """One that computes and is given nothing new: as good as none where no other serves its model."""
    words = "drains" if worker.state == Worker.State.DRAINING else f"is {worker.state}"
    model = worker.base_model
    others = Worker.objects.filter(base_model=model, state=Worker.State.ACTIVE)
    if model.state != BaseModel.State.ACTIVE or others.exists():
        return Finding(f"worker {worker.name}", True, f"{worker.url} computes, {model.name}; it {words}")
    advice = f"`manage.py drain_worker {worker.name} --undo` takes it back."
    found = f"it {words}, and no other serves {model.name}: requests are answered with 503"
    return Finding(f"worker {worker.name}", False, found, advice)


async def _health(url: str) -> dict[str, object]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        return await WorkerClient(url, session).health()


def leases() -> Finding:
    """Whether requests that dead gateways left behind are settled: by a task that beat starts every few seconds."""
    abandoned = InferenceRequest.objects.unscoped().filter(state="running", lease_expires_at__lte=Now())
    oldest = abandoned.aggregate(age=Now() - Min("lease_expires_at"))["age"]
    if oldest is None:
        return Finding("leases", True, "no request runs on an expired lease")
    age = oldest.total_seconds()
    found = f"a request still runs on a lease that expired {age:.0f} s ago"
    if age <= MOST_LEASE_OVERDUE_SECONDS:
        return Finding("leases", True, found)
    advice = "Is celery beat running? `celery -A gateway beat`, or `manage.py up`; `manage.py reap` settles it now."
    return Finding("leases", False, found, advice)


def batches() -> Finding:
    """Whether somebody takes up the batches that could go on. The process for them answers no ping while it works."""
    if batch_work.at_work() or not batch_work.waiting(MOST_BATCH_WAIT_SECONDS):
        return Finding("batches", True, "none waits for a process to take it up")
    advice = "Start `manage.py up`, or beat and `celery -A gateway worker --pool solo --queues batches`."
    return Finding("batches", False, f"one could go on for more than {MOST_BATCH_WAIT_SECONDS} s", advice)


def _again(worker: Worker) -> str:
    """What to do about one that does not answer."""
    if worker.name == WORKER_OF_UP:
        return f"Start `manage.py up` again; the worker's log says more ({settings.LOG_DIR / 'worker.log'})."
    return (
        f"Start it again where {worker.url} is, and look at its log there; if it is gone for good, "
        f"`manage.py remove_worker {worker.name}`."
    )


def _guarded(name: str, advice: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (InferenceError, OSError, TimeoutError) as error:
        return Finding(name, False, _first_line(error), advice)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
