"""How an adapter gets in: hostile files → a copy of our own → checked → the content store → its trial → its alias.

:func:`receive` runs where the files are (a command), :func:`take_in` where an upload left them; :func:`check` runs in a
Celery task. Between them lie a row in state ``pending`` and a directory ``INCOMING_DIR/<version id>``. What is checked
is the very copy that the store then keeps, so nobody can exchange files in between.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from django.db import InterfaceError, transaction
from django.db import OperationalError as DatabaseFailed
from django.db.models import F, Max
from django.utils import timezone
from kombu.exceptions import OperationalError

from inference.adapter_format import AdapterSpec, check_listing, content_digest
from inference.adapter_problems import find_problems
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid, UnsupportedModel
from inference.golden import GOLDEN_FILE, MAX_BYTES, golden_of
from inference.safetensors_header import load_json, open_regular, printable
from tenants import activation, adapter_quotas, adapter_store, audit, releases, version_lock, webhooks
from tenants.actors import Actor, of_command, of_task
from tenants.adapter_files import copy_files, incoming, new_copy, num_bytes
from tenants.errors import AdapterRefused, NotConfigured
from tenants.models import Adapter, AdapterUpload, AdapterVersion, BaseModel, ModelAllowance, Tenant
from tenants.rows import hold_tenant

logger = logging.getLogger(__name__)

MAX_TRIES = 10
_MACHINE_FAILED = (OSError, MemoryError, DatabaseFailed, InterfaceError)
"""Not the adapter's fault: the version stays pending, and its check is tried again."""
_CHECK = of_task("check_adapter")


def receive(
    *, tenant: Tenant, name: str, source: Path, base_model: BaseModel | None = None, actor: Actor | None = None
) -> AdapterVersion:
    """Copy an adapter's files and queue their check; returns the version, ``pending`` unless it was known before.

    Content that this adapter already has is not stored twice: its version is returned, and if it is ready the alias
    moves (back) to it. ``golden.json`` beside the files is kept with the version.

    :param base_model: may be left out for an adapter that exists, and where the tenant may use only one base model.
    :param actor: ``None``: whoever runs this process.

    Raises :class:`~tenants.errors.AdapterRefused` naming the file at fault, ``ValidationError`` for a bad name,
    :class:`~tenants.errors.Conflict` where a quota leaves no room.
    """
    copy = new_copy()
    try:
        check_listing(source)
        golden = read_golden(source)
        copy_files(source, copy)
        return take_in(
            copy, tenant=tenant, name=name, base_model=base_model, golden=golden, actor=actor or of_command()
        )
    except AdapterInvalid as error:
        raise AdapterRefused(str(error)) from None
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def take_in(
    copy: Path,
    *,
    tenant: Tenant,
    name: str,
    base_model: BaseModel | None,
    golden: dict[str, Any] | None,
    actor: Actor,
    upload: AdapterUpload | None = None,
) -> AdapterVersion:
    """As :func:`receive`, of a directory named by :func:`~tenants.adapter_files.new_copy` that holds the adapter's two
    files, of an acceptable size and durably. It is the version's afterwards, unless the content was known.

    :param upload: where the files came from; it makes room in the quotas. Its check is queued when the broker returns.
    """
    draft = AdapterVersion(digest=content_digest(copy), stored_bytes=num_bytes(copy), golden=golden)
    with transaction.atomic():
        tenant = hold_tenant(tenant.pk)
        known = _known(actor, tenant, name, base_model, draft.digest)
        version = known or _new(tenant, name, base_model, draft, upload)
        if known is None:
            audit.record(actor, "adapter.version_added", str(version.adapter), tenant=tenant, after=_audited(version))
            copy.rename(incoming(version))
        if version.state == AdapterVersion.State.PENDING:
            transaction.on_commit(lambda: enqueue(version), robust=upload is not None)
    return version


def _audited(version: AdapterVersion) -> dict[str, Any]:
    return {"version": version.number, "digest": version.digest, "bytes": version.stored_bytes}


def read_golden(directory: Path) -> dict[str, Any] | None:
    """The directory's ``golden.json``, if it has one. Raises :class:`~inference.errors.AdapterInvalid`."""
    path = directory / GOLDEN_FILE
    if not os.path.lexists(path):
        return None
    with open_regular(path) as (file, size):
        if size > MAX_BYTES:
            raise AdapterInvalid(f"{GOLDEN_FILE} has {size} bytes; at most {MAX_BYTES} are accepted", GOLDEN_FILE)
        value = load_json(file.read(MAX_BYTES), GOLDEN_FILE)
    golden_of(value)
    return value


def model_for(tenant: Tenant, name: str, base_model: BaseModel | None) -> BaseModel:
    """The base model of the tenant's adapter, there already or to come. Raises :class:`AdapterRefused`."""
    adapter: Adapter | None = tenant.adapters.filter(name=name).select_related("base_model").first()
    if adapter is None:
        return base_model or _only_model(tenant)
    if base_model not in (None, adapter.base_model):
        raise AdapterRefused(f"{adapter} is an adapter of {adapter.base_model}, not of {base_model}")
    return adapter.base_model


def _only_model(tenant: Tenant) -> BaseModel:
    allowances = ModelAllowance.objects.filter(tenant=tenant).select_related("base_model")
    models: list[BaseModel] = [allowance.base_model for allowance in allowances]
    if len(models) != 1:
        known = ", ".join(model.name for model in models) or "none"
        raise AdapterRefused(f"say which base model the adapter is for; {tenant} may use: {known}")
    return models[0]


def _known(actor: Actor, tenant: Tenant, name: str, base_model: BaseModel | None, digest: str) -> AdapterVersion | None:
    """The adapter's version of this content, if there is one; if it is ready, the alias moves to it."""
    model_for(tenant, name, base_model)
    adapter: Adapter | None = tenant.adapters.filter(name=name).select_for_update().first()
    if adapter is None:
        return None
    known: AdapterVersion | None = (
        adapter.versions.filter(digest=digest).exclude(state="rejected").select_related("adapter__tenant").first()
    )
    if known is not None and known.state == AdapterVersion.State.READY:
        releases.sent_again(actor, known)
    return known


def _new(
    tenant: Tenant, name: str, base_model: BaseModel | None, version: AdapterVersion, upload: AdapterUpload | None
) -> AdapterVersion:
    adapter: Adapter | None = tenant.adapters.filter(name=name).first()
    adapter_quotas.require_room(tenant, name, version.stored_bytes, without=upload)
    if adapter is None:
        adapter = Adapter(tenant=tenant, name=name, base_model=model_for(tenant, name, base_model))
        adapter.full_clean()
        adapter.save()
    ever = AdapterVersion.with_deleted.filter(adapter=adapter, adapter__tenant=tenant)
    last = ever.aggregate(last=Max("number"))["last"] or 0
    version.adapter, version.number = adapter, last + 1
    version.save()
    return version


def enqueue(version: AdapterVersion) -> None:
    """Queue the check. Raises :class:`~tenants.errors.NotConfigured` when there is no broker; the row then waits."""
    from tenants.tasks import check_adapter as task

    try:
        task.delay(version.pk)
    except (OperationalError, OSError) as error:
        raise NotConfigured(
            f"{version} waits for its check, but the Celery broker cannot be reached ({type(error).__name__})"
        ) from error


def check(version_id: int) -> None:
    """Check a pending version: it goes on to its trial (:mod:`tenants.activation`), or is rejected with a report.
    Harmless to run again or twice at once.

    The files stay in ``INCOMING_DIR`` until the outcome is committed, so that a killed task can be repeated.
    """
    version: AdapterVersion | None = (
        AdapterVersion.objects.unscoped().select_related("adapter__base_model").filter(pk=version_id).first()
    )
    if version is None or version.state != AdapterVersion.State.PENDING:
        return
    if version.tries >= MAX_TRIES:
        give_up(version)
        return
    AdapterVersion.objects.unscoped().filter(pk=version_id, state="pending").update(tries=F("tries") + 1)
    try:
        _decide(version)
    except _MACHINE_FAILED:
        raise
    except Exception:  # whatever an adapter provokes, its version does not stay pending for ever
        logger.exception("the check of %s failed", version)
        _reject(version_id, AdapterInvalid("the adapter could not be checked"))
    shutil.rmtree(incoming(version), ignore_errors=True)


def _decide(version: AdapterVersion) -> None:
    base = version.adapter.base_model
    try:
        spec, digest = adapter_store.put(incoming(version), base)
    except AdapterInvalid as error:
        _reject(version.pk, error, find_problems(incoming(version), BaseShapes.from_config(base.config)))
    except UnsupportedModel as error:
        _reject(version.pk, AdapterInvalid(f"the base model {base} takes no adapters: {error}"))
    else:
        _accept(version.pk, spec, digest)


def give_up(version: AdapterVersion) -> None:
    """Reject what was tried :data:`MAX_TRIES` times: the machine failed each time, or the check was killed."""
    logger.error("the check of %s was tried %d times; rejected", version, version.tries)
    _reject(version.pk, AdapterInvalid("the adapter could not be checked: every try failed; add it again"))
    shutil.rmtree(incoming(version), ignore_errors=True)


def _accept(version_id: int, spec: AdapterSpec, digest: str) -> None:
    with transaction.atomic():
        version = _lock_pending(version_id)
        if version is None:
            return
        version.digest = digest
        version.num_bytes = spec.num_bytes
        version.spec = _shown(spec)
        version.checked_at = timezone.now()
        activation.begin(version)


def _shown(spec: AdapterSpec) -> dict[str, Any]:
    targets = [
        {
            "module": target.module,
            "rank": target.rank,
            "scaling": target.scaling,
            "dora": target.magnitude is not None,
        }
        for target in spec.targets
    ]
    return {"dtype": spec.dtype, "max_rank": spec.max_rank, "targets": targets}


def _reject(version_id: int, error: AdapterInvalid, problems: list[dict[str, str | None]] | None = None) -> None:
    with transaction.atomic():
        version = _lock_pending(version_id)
        if version is None:
            return
        field = error.field and printable(error.field)
        message = printable(str(error), 1000)
        version.state = AdapterVersion.State.REJECTED
        found = problems or [{"message": message, "field": field, "advice": None}]
        version.report = {"message": message, "field": field, "problems": found}
        version.checked_at = timezone.now()
        version.save()
        adapter = version.adapter
        after = {**_audited(version), "message": message}
        audit.record(_CHECK, "adapter.version_rejected", str(adapter), tenant=adapter.tenant, after=after)
        about = {"adapter": str(adapter), "version": version.number, "report": version.report}
        webhooks.emit(adapter.tenant, "adapter.rejected", about, once=f"version {version_id}")


def _lock_pending(version_id: int) -> AdapterVersion | None:
    """The version, locked, if nobody has decided on it meanwhile."""
    version = version_lock.lock(version_id)
    return version if version is not None and version.state == AdapterVersion.State.PENDING else None
