"""The steps of an upload."""

from __future__ import annotations

import io
from typing import Any

from tenants import intake, uploads
from tenants.actors import Actor
from tenants.models import AdapterUpload, AdapterVersion, Tenant
from tests.tenants.adapter_parts import declared

ACTOR = Actor("command", "tests")


def begin(tenant: Tenant, files: dict[str, bytes], name: str = "pirate", **options: Any) -> AdapterUpload:
    return uploads.create(ACTOR, tenant, name=name, files=declared(files), **options)


def send(tenant: Tenant, upload: AdapterUpload, files: dict[str, bytes], part: int = 1 << 20) -> None:
    for name, data in files.items():
        for offset in range(0, len(data), part):
            uploads.append(tenant, upload.pk, name, offset, io.BytesIO(data[offset : offset + part]).read)


def finish(tenant: Tenant, upload: AdapterUpload) -> AdapterVersion:
    version = uploads.complete(ACTOR, tenant, upload.pk).version
    assert version is not None
    return version


def checked(version: AdapterVersion) -> None:
    """Its check passes; whether it answers at once is the activation gate's to say."""
    intake.check(version.pk)
    version.refresh_from_db()
    assert (version.state in {"checked", "ready"}, version.report) == (True, {})
    assert version.spec["max_rank"] == 2
