"""A process killed while it writes a part or completes an upload: what was kept goes on."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenants import upload_files, uploads
from tenants.errors import Conflict
from tenants.models import AdapterVersion
from tests.tenants.adapter_parts import contents
from tests.tenants.uploads.steps import begin, checked, finish, send

_KILLED_WRITING = """
import os, signal, sys
sys.path[:0] = [{root!r}, {root!r} + "/platform", {root!r} + "/kernels"]
os.environ.update(DJANGO_SETTINGS_MODULE="gateway.settings", DATABASE_URL={dsn!r}, LORAPLEX_DATA_DIR={data!r})
import django; django.setup()
from tenants import uploads
from tenants.models import Tenant
pieces = [b"x" * 100, b"y" * 50]
def read(size):
    if not pieces:
        os.kill(os.getpid(), signal.SIGKILL)
    return pieces.pop(0)
uploads.append(Tenant.objects.get(slug="acme"), {upload!r}, "adapter_model.safetensors", 0, read)
"""


_KILLED = """
import io, os, signal, sys
sys.path[:0] = [{root!r}, {root!r} + "/platform", {root!r} + "/kernels"]
os.environ.update(DJANGO_SETTINGS_MODULE="gateway.settings", DATABASE_URL={dsn!r}, LORAPLEX_DATA_DIR={data!r})
import django; django.setup()
from tenants import intake, tasks, upload_files, uploads
from tenants.actors import Actor
from tenants.models import Tenant
tasks.check_adapter.delay = lambda pk: None
tenant, step = Tenant.objects.get(slug="acme"), {step!r}
module, name = {{
    "verify": (upload_files, "verify"), "gather": (upload_files, "gather"),
    "rows": (intake, "_new"), "end": (uploads, "_end"), "queue": (intake, "enqueue"),
}}[step]
before = getattr(module, name)
def killed(*args, **kwargs):
    before(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, killed)
uploads.complete(Actor("command", "tests"), tenant, {upload!r})
"""


def killed(code: str, dsn: str, tmp_path: Path, **values: str) -> None:
    """Run the code in a process of its own, which kills itself."""
    code = code.format(root=str(Path(__file__).parents[3]), dsn=dsn, data=str(tmp_path / "var"), **values)
    environment = {**os.environ, "LORAPLEX_KEY_PEPPERS": "1:" + "00" * 32}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.slow
def test_a_process_killed_while_it_writes_keeps_what_it_wrote(
    tenant: Any, dsn: str, settings: Any, make_adapter: Any, tmp_path: Path
) -> None:
    settings.INCOMING_DIR = tmp_path / "var" / "incoming"
    files, name = contents(make_adapter()), "adapter_model.safetensors"
    upload = begin(tenant, files)
    killed(_KILLED_WRITING, dsn, tmp_path, upload=str(upload.pk))
    assert upload_files.received(upload)[name] == 150
    uploads.append(tenant, upload.pk, name, 150, io.BytesIO(files[name][150:]).read)
    send(tenant, upload, {"adapter_config.json": files["adapter_config.json"]})
    with pytest.raises(Conflict, match="not the declared one"):
        finish(tenant, upload)  # x and y were not its bytes
    send(tenant, upload, {name: files[name]})
    checked(finish(tenant, upload))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["verify", "gather", "rows", "end", "queue"])
def test_a_process_killed_while_it_completes_loses_nothing(
    step: str, tenant: Any, dsn: str, settings: Any, make_adapter: Any, tmp_path: Path
) -> None:
    settings.INCOMING_DIR = tmp_path / "var" / "incoming"
    files = contents(make_adapter())
    upload = begin(tenant, files)
    send(tenant, upload, files)
    killed(_KILLED, dsn, tmp_path, step=step, upload=str(upload.pk))
    version = finish(tenant, upload)
    assert version.number == 1
    checked(version)
    assert AdapterVersion.objects.filter(adapter__tenant=tenant).count() == 1
