"""How an adapter gets in: hostile files → a copy of our own → checked → the content store → its alias.

:func:`receive` runs where the files are (a command, an upload); :func:`check` runs in a Celery task. Between them lie
a row in state ``pending`` and a directory ``INCOMING_DIR/<version id>``. What is checked is the very copy that the
store then keeps, so nobody can exchange files in between.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from django.conf import settings
from django.db import InterfaceError, transaction
from django.db import OperationalError as DatabaseFailed
from django.db.models import F, Max
from django.utils import timezone
from kombu.exceptions import OperationalError

from inference.adapter_format import (
    MAX_CONFIG_BYTES,
    MAX_TENSOR_BYTES,
    STORED_FILES,
    AdapterSpec,
    check_adapter,
    check_listing,
    content_digest,
    store_path,
)
from inference.base_shapes import BaseShapes
from inference.errors import AdapterInvalid, UnsupportedModel
from inference.safetensors_header import open_regular, printable
from tenants.errors import AdapterRefused, NotConfigured
from tenants.models import Adapter, AdapterVersion, BaseModel, ModelAllowance, Tenant

logger = logging.getLogger(__name__)

MAX_TRIES = 10
_MACHINE_FAILED = (OSError, MemoryError, DatabaseFailed, InterfaceError)
"""Not the adapter's fault: the version stays pending, and its check is tried again."""
_COPY_BYTES = 1 << 20
_LARGEST = dict(zip(STORED_FILES, (MAX_CONFIG_BYTES, MAX_TENSOR_BYTES), strict=True))


def receive(*, tenant: Tenant, name: str, source: Path, base_model: BaseModel | None = None) -> AdapterVersion:
    """Copy an adapter's files and queue their check; returns the version, ``pending`` unless it was known before.

    Content that this adapter already has is not stored twice: its version is returned, and if it is ready the alias
    moves (back) to it.

    :param base_model: may be left out for an adapter that exists, and where the tenant may use only one base model.

    Raises :class:`~tenants.errors.AdapterRefused` naming the file at fault, ``ValidationError`` for a bad name.
    """
    adapter = _adapter(tenant, name, base_model)
    copy = _private(Path(settings.INCOMING_DIR)) / f"copy-{uuid4().hex}"
    try:
        check_listing(source)
        copy_files(source, copy)
        digest = content_digest(copy)
        with transaction.atomic():
            version, is_new = _version(adapter, digest)
            if is_new:
                copy.rename(incoming(version))
            if version.state == AdapterVersion.State.PENDING:
                transaction.on_commit(lambda: enqueue(version))
    except AdapterInvalid as error:
        raise AdapterRefused(str(error)) from None
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return version


def _private(directory: Path) -> Path:
    """The directory, made for this user alone if it has to be made."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def incoming(version: AdapterVersion) -> Path:
    """Where a pending version's files wait for their check."""
    return Path(settings.INCOMING_DIR) / str(version.pk)


def _adapter(tenant: Tenant, name: str, base_model: BaseModel | None) -> Adapter:
    adapter: Adapter | None = tenant.adapters.filter(name=name).select_related("base_model").first()
    if adapter is not None:
        if base_model not in (None, adapter.base_model):
            raise AdapterRefused(f"{adapter} is an adapter of {adapter.base_model}, not of {base_model}")
        return adapter
    if base_model is None:
        base_model = _only_model(tenant)
    adapter = Adapter(tenant=tenant, name=name, base_model=base_model)
    adapter.full_clean()
    adapter.save()
    return adapter


def _only_model(tenant: Tenant) -> BaseModel:
    allowances = ModelAllowance.objects.filter(tenant=tenant).select_related("base_model")
    models: list[BaseModel] = [allowance.base_model for allowance in allowances]
    if len(models) != 1:
        known = ", ".join(model.name for model in models) or "none"
        raise AdapterRefused(f"say which base model the adapter is for; {tenant} may use: {known}")
    return models[0]


def _version(adapter: Adapter, digest: str) -> tuple[AdapterVersion, bool]:
    """The adapter's version of this content, and whether it was made now."""
    locked = Adapter.objects.select_for_update().get(pk=adapter.pk, tenant=adapter.tenant)
    known: AdapterVersion | None = adapter.versions.filter(digest=digest).exclude(state="rejected").first()
    if known is None:
        last = adapter.versions.aggregate(last=Max("number"))["last"] or 0
        return AdapterVersion.objects.create(adapter=adapter, number=last + 1, digest=digest), True
    if known.state == AdapterVersion.State.READY and locked.current_id != known.pk:
        locked.current = known
        locked.save(update_fields=["current"])
    return known, False


def enqueue(version: AdapterVersion) -> None:
    """Queue the check. Raises :class:`~tenants.errors.NotConfigured` when there is no broker; the row then waits."""
    from tenants.tasks import check_adapter as task

    try:
        task.delay(version.pk)
    except (OperationalError, OSError) as error:
        raise NotConfigured(
            f"{version} waits for its check, but the Celery broker cannot be reached ({type(error).__name__})"
        ) from error


def copy_files(source: Path, target: Path) -> None:
    """Copy the adapter's two files, and only regular files of an acceptable size, to a new directory, durably.

    Raises :class:`~inference.errors.AdapterInvalid`.
    """
    target.mkdir()
    for name in STORED_FILES:
        with ExitStack() as stack:
            file, size = stack.enter_context(open_regular(source / name))
            if size > _LARGEST[name]:
                raise AdapterInvalid(f"{name} has {size} bytes; at most {_LARGEST[name]} are accepted", name)
            copy = stack.enter_context((target / name).open("xb"))
            left = size
            while left and (data := file.read(min(left, _COPY_BYTES))):
                copy.write(data)
                left -= len(data)
            if left or file.read(1):
                raise AdapterInvalid(f"{name} changed while it was read", name)
            copy.flush()
            os.fsync(copy.fileno())
    _sync_directory(target)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check(version_id: int) -> None:
    """Check a pending version and make it ready, or rejected with a report. Harmless to run again or twice at once.

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
        _reject(version_id, "the adapter could not be checked", None)
    shutil.rmtree(incoming(version), ignore_errors=True)


def _decide(version: AdapterVersion) -> None:
    try:
        spec, digest = _store(incoming(version), version.adapter.base_model)
    except AdapterInvalid as error:
        _reject(version.pk, str(error), error.field)
    except UnsupportedModel as error:
        _reject(version.pk, f"the base model {version.adapter.base_model} takes no adapters: {error}", None)
    else:
        _accept(version.pk, spec, digest)


def give_up(version: AdapterVersion) -> None:
    """Reject what was tried :data:`MAX_TRIES` times: the machine failed each time, or the check was killed."""
    logger.error("the check of %s was tried %d times; rejected", version, version.tries)
    _reject(version.pk, "the adapter could not be checked: every try failed; add it again", None)
    shutil.rmtree(incoming(version), ignore_errors=True)


def _store(waiting: Path, base_model: BaseModel) -> tuple[AdapterSpec, str]:
    """Copy into the content store, check the copy, and give it its final name."""
    store = _private(Path(settings.ADAPTER_STORE))
    copy = store / f".copy-{uuid4().hex}"
    try:
        copy_files(waiting, copy)
        spec = check_adapter(copy, BaseShapes.from_config(base_model.config))
        digest = content_digest(copy)
        for name in STORED_FILES:
            (copy / name).chmod(0o444)
        final = store_path(store, digest)
        final.parent.mkdir(exist_ok=True)
        if not _holds(final, digest):
            if final.exists():  # damaged since it was stored: put it out of the way, keep it for whoever looks into it
                logger.error("the stored adapter %s does not match its digest; replaced", digest)
                final.rename(store / f".damaged-{digest}-{uuid4().hex[:8]}")
            try:
                copy.rename(final)
            except OSError:
                if not _holds(final, digest):  # else another task was quicker with the same content
                    raise
            _sync_directory(final.parent)
        return spec, digest
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _holds(directory: Path, digest: str) -> bool:
    try:
        return content_digest(directory) == digest
    except AdapterInvalid:
        return False


def _accept(version_id: int, spec: AdapterSpec, digest: str) -> None:
    with transaction.atomic():
        version = _lock_pending(version_id)
        if version is None:
            return
        version.state = AdapterVersion.State.READY
        version.digest = digest
        version.num_bytes = spec.num_bytes
        version.spec = {
            "dtype": spec.dtype,
            "max_rank": spec.max_rank,
            "targets": [
                {
                    "module": target.module,
                    "rank": target.rank,
                    "scaling": target.scaling,
                    "dora": target.magnitude is not None,
                }
                for target in spec.targets
            ],
        }
        version.checked_at = timezone.now()
        version.save()
        adapter = version.adapter
        if adapter.current is None or adapter.current.number < version.number:
            adapter.current = version
            adapter.save(update_fields=["current"])


def _reject(version_id: int, message: str, field: str | None) -> None:
    with transaction.atomic():
        version = _lock_pending(version_id)
        if version is None:
            return
        version.state = AdapterVersion.State.REJECTED
        version.report = {"message": printable(message, 1000), "field": field and printable(field)}
        version.checked_at = timezone.now()
        version.save()


def _lock_pending(version_id: int) -> AdapterVersion | None:
    """The version, its adapter locked first, if nobody has decided on it meanwhile."""
    found = AdapterVersion.objects.unscoped().select_for_update(of=("self", "adapter"))
    version: AdapterVersion | None = found.select_related("adapter").filter(pk=version_id, state="pending").first()
    return version
