"""Uploads part by part: what is kept when something breaks, what is refused, and that quotas hold under a race."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as configured
from django.db import connection
from django.utils import timezone

from tenants import adapter_quotas, intake, tasks, upload_files, uploads
from tenants.actors import Actor
from tenants.errors import AdapterRefused, Conflict, Invalid, NotConfigured, NotFound
from tenants.models import AdapterUpload, AdapterVersion, AuditEntry, ModelAllowance, Tenant
from tests.tenants.adapter_parts import contents, declared, tar_of

ACTOR = Actor("command", "tests")


@pytest.fixture
def tenant(world: Any, settings: Any, tmp_path: Path) -> Any:
    settings.INCOMING_DIR = tmp_path / "incoming"
    settings.ADAPTER_STORE = tmp_path / "store"
    return world.actor("acme").tenant


@pytest.fixture(autouse=True)
def queued(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ids: list[int] = []
    monkeypatch.setattr(tasks.check_adapter, "delay", ids.append)
    return ids


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


def race(*works: Any) -> list[Any]:
    """All at the same moment, each in a thread; what each returned or raised."""
    gate, outcomes = threading.Barrier(len(works)), [None] * len(works)

    def run(index: int, work: Any) -> None:
        gate.wait()
        try:
            outcomes[index] = work()
        except Exception as error:
            outcomes[index] = error  # type: ignore[call-overload]
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_from_parts_to_a_ready_version(tenant: Any, queued: list[int], make_adapter: Any, tmp_path: Path) -> None:
    files = contents(make_adapter())
    upload = begin(tenant, files)
    send(tenant, upload, files, part=100)
    assert upload_files.received(upload) == {name: len(data) for name, data in files.items()}
    version = finish(tenant, upload)
    assert (version.state, version.stored_bytes, queued) == ("pending", sum(map(len, files.values())), [version.pk])
    assert list(upload_files.folder().iterdir()) == [], "the parts are gone once the version has them"
    assert finish(tenant, upload).pk == version.pk, "repeating it returns the outcome"
    checked(version)
    actions = [entry.action for entry in AuditEntry.objects.filter(tenant=tenant).order_by("pk")]
    assert actions[:3] == ["upload.created", "adapter.version_added", "upload.completed"]


@pytest.mark.parametrize("name", ["adapter.tar", "adapter.tar.gz"])
def test_a_tar_of_them_does_as_well(name: str, tenant: Any, make_adapter: Any) -> None:
    data = tar_of(contents(make_adapter()), "w:gz" if name.endswith("gz") else "w", mtime=1.5)
    upload = begin(tenant, {name: data})
    send(tenant, upload, {name: data})
    version = finish(tenant, upload)
    checked(version)


def test_golden_prompts_come_along(tenant: Any, make_adapter: Any) -> None:
    golden = b'{"prompts": [{"token_ids": [1, 2], "adapter": {"logprobs": [-1.0], "following": [[3, -0.5]]}}]}'
    files = {**contents(make_adapter()), "golden.json": golden}
    upload = begin(tenant, files)
    send(tenant, upload, files)
    version = finish(tenant, upload)
    assert version.golden["prompts"][0]["token_ids"] == [1, 2]
    other = {**contents(make_adapter(seed=1)), "golden.json": b'{"prompts": 1}'}
    upload = begin(tenant, other)
    send(tenant, upload, other)
    with pytest.raises(AdapterRefused, match=r"golden\.json"):
        finish(tenant, upload)


def test_only_the_next_part_is_taken(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    upload, (name, data) = begin(tenant, files), next(iter(files.items()))

    def put(offset: int, part: bytes) -> int:
        return uploads.append(tenant, upload.pk, name, offset, io.BytesIO(part).read)

    assert put(0, data[:10]) == 10
    for offset in (0, 5, 11):
        with pytest.raises(Conflict) as refused:
            put(offset, b"x")
        assert refused.value.code == "wrong_offset"
    with pytest.raises(Invalid, match="beyond"):
        put(10, data)
    assert upload_files.received(upload)[name] == 10, "nothing of a refused part stays"
    assert put(10, b"") == 10
    with pytest.raises(NotFound):
        uploads.append(tenant, upload.pk, "../evil", 0, io.BytesIO(b"x").read)


def test_a_part_that_breaks_off_leaves_nothing(tenant: Any, make_adapter: Any) -> None:
    upload = begin(tenant, contents(make_adapter()))
    pieces = iter([b"half", OSError(28, "No space left on device")])

    def read(size: int) -> bytes:
        piece = next(pieces)
        if isinstance(piece, OSError):
            raise piece
        return piece

    with pytest.raises(NotConfigured, match="disk"):
        uploads.append(tenant, upload.pk, "adapter_config.json", 0, read)
    assert upload_files.received(upload)["adapter_config.json"] == 0


def test_an_incomplete_or_altered_upload_is_no_version(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    upload, name = begin(tenant, files), "adapter_model.safetensors"
    with pytest.raises(Conflict, match="0 of"):
        finish(tenant, upload)
    send(tenant, upload, {**files, name: files[name][:-1] + b"?"})
    with pytest.raises(Conflict) as refused:
        finish(tenant, upload)
    assert refused.value.code == "digest_mismatch"
    assert upload_files.received(upload)[name] == 0
    send(tenant, upload, {name: files[name]})
    assert finish(tenant, upload).number == 1


def test_what_is_declared_has_to_be_an_adapter(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    one = {"adapter_config.json": b"{}"}
    for wrong in (one, {**files, "adapter.tar": b"x"}, {**files, "model.bin": b"x"}, {"../adapter.tar": b"x"}, {}):
        with pytest.raises(Invalid, match="files"):
            begin(tenant, wrong)
    sizes = declared(files)
    for wrong_file in (
        uploads.Declared(sizes[0].name, 0, sizes[0].sha256),
        uploads.Declared(sizes[0].name, 1 << 20, sizes[0].sha256),
        uploads.Declared(sizes[0].name, 10, "A" * 64),
    ):
        with pytest.raises(Invalid, match=r"adapter_config\.json"):
            uploads.create(ACTOR, tenant, name="pirate", files=[wrong_file, sizes[1]])
    for name in ("Pirate", "a/b", "a\0b", "", "x" * 64, "ä"):
        with pytest.raises(Invalid) as refused:
            begin(tenant, files, name=name)
        assert refused.value.param == "adapter"
    with pytest.raises(NotFound):
        begin(tenant, files, base_model="somebody-elses")
    ModelAllowance.objects.filter(tenant=tenant).delete()
    with pytest.raises(AdapterRefused, match="which base model"):
        begin(tenant, files)


def test_cancelled_and_expired_uploads_take_nothing(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    cancelled, expired, alive = (begin(tenant, files, name=name) for name in ("one", "two", "three"))
    for upload in (cancelled, expired, alive):
        send(tenant, upload, files)
    uploads.cancel(ACTOR, tenant, cancelled.pk)
    AdapterUpload.objects.filter(tenant=tenant, pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    for upload, code in ((cancelled, "upload_cancelled"), (expired, "upload_expired")):
        for work in (
            lambda upload=upload: finish(tenant, upload),
            lambda upload=upload: send(tenant, upload, files),
            lambda upload=upload: uploads.cancel(ACTOR, tenant, upload.pk),
        ):
            with pytest.raises(Conflict) as refused:
                work()
            assert refused.value.code == code
    assert uploads.expire() == 1
    assert [path.name for path in upload_files.folder().iterdir()] == [str(alive.pk)]
    assert finish(tenant, alive).number == 1


@pytest.mark.parametrize("moment", ["held", "verify", "gather"])
@pytest.mark.parametrize("packed", [False, True])
def test_cancelled_while_it_is_completed(
    moment: str, packed: bool, tenant: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents(make_adapter())
    files = {"adapter.tar": tar_of(files, "w")} if packed else files
    upload = begin(tenant, files)
    send(tenant, upload, files)
    work = getattr(upload_files, moment)

    def cancel_first(*values: Any) -> Any:
        if uploads.find(tenant, upload.pk).state == "open":
            uploads.cancel(ACTOR, tenant, upload.pk)
        return work(*values)

    monkeypatch.setattr(upload_files, moment, cancel_first)
    with pytest.raises(Conflict) as refused:
        finish(tenant, upload)
    assert refused.value.code == "upload_cancelled"
    _nothing_lies_about()


def test_cancelled_while_a_part_comes_in(tenant: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = contents(make_adapter())
    upload, held = begin(tenant, files), upload_files.held

    def cancel_first(path: Path) -> Any:
        uploads.cancel(ACTOR, tenant, upload.pk)
        return held(path)

    monkeypatch.setattr(upload_files, "held", cancel_first)
    with pytest.raises(Conflict) as refused:
        send(tenant, upload, files)
    assert refused.value.code == "upload_cancelled"
    _nothing_lies_about()


def test_completed_twice_at_once_has_one_outcome(
    tenant: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents(make_adapter())
    upload, held = begin(tenant, files), upload_files.held
    versions: list[int] = []
    send(tenant, upload, files)

    def complete_first(path: Path) -> Any:
        monkeypatch.setattr(upload_files, "held", held)
        versions.append(finish(tenant, upload).pk)
        return held(path)

    monkeypatch.setattr(upload_files, "held", complete_first)
    assert [finish(tenant, upload).pk] == versions
    assert list(upload_files.folder().iterdir()) == []


def _nothing_lies_about() -> None:
    left = [path for path in Path(configured.INCOMING_DIR).rglob("*") if path != upload_files.folder()]
    assert left == [], "no parts and no copies"


def test_a_stranger_finds_nothing(tenant: Any, world: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    upload, stranger = begin(tenant, files), world.actor("globex").tenant
    for work in (
        lambda: uploads.find(stranger, upload.pk),
        lambda: send(stranger, upload, files),
        lambda: finish(stranger, upload),
        lambda: uploads.cancel(ACTOR, stranger, upload.pk),
        lambda: uploads.find(tenant, uuid4()),
    ):
        with pytest.raises(NotFound, match="There is no upload"):
            work()


def test_two_parts_at_once_are_one_after_the_other_or_refused(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    upload, name = begin(tenant, files), "adapter_model.safetensors"
    data = files[name]
    outcomes = race(*(lambda: uploads.append(tenant, upload.pk, name, 0, io.BytesIO(data).read) for _ in range(6)))
    assert outcomes.count(len(data)) == 1
    assert {o.code for o in outcomes if isinstance(o, Exception)} <= {"busy", "wrong_offset"}
    send(tenant, upload, {"adapter_config.json": files["adapter_config.json"]})
    done = race(*(lambda: finish(tenant, upload).number for _ in range(4)))
    assert 1 in done
    assert {getattr(outcome, "code", outcome) for outcome in done} <= {1, "busy"}
    assert tenant.adapters.get().versions.count() == 1


# Quotas ---------------------------------------------------------------------------------------------------------------


def test_quotas_of_the_plan_and_the_tenants_own(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    size = sum(map(len, files.values()))
    for limit in Tenant.ADAPTER_QUOTAS:
        setattr(tenant.plan, limit, 0)
        tenant.plan.save()
        with pytest.raises(Conflict, match=limit) as refused:
            begin(tenant, files)
        assert refused.value.code == "quota_exceeded"
        with pytest.raises(Conflict, match=limit):
            intake.receive(tenant=tenant, name="pirate", source=make_adapter())
        Tenant.objects.filter(pk=tenant.pk).update(**{limit: size})
    uploads.cancel(ACTOR, tenant, begin(tenant, files).pk)
    assert adapter_quotas.used(tenant) == adapter_quotas.Use(0, 0, 0)


def test_open_uploads_make_room_and_known_content_needs_none(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    Tenant.objects.filter(pk=tenant.pk).update(max_adapters=1, max_adapter_versions=1)
    upload = begin(tenant, files)
    for name in ("pirate", "other"):
        with pytest.raises(Conflict, match="quota"):
            begin(tenant, files, name=name)
    send(tenant, upload, files)
    version = finish(tenant, upload)
    assert intake.receive(tenant=tenant, name="pirate", source=make_adapter()).pk == version.pk
    with pytest.raises(Conflict, match="max_adapter_versions"):
        intake.receive(tenant=tenant, name="pirate", source=make_adapter("other", seed=1))


def test_open_uploads_are_few(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    for _ in range(uploads.MOST_OPEN):
        begin(tenant, files)
    with pytest.raises(Conflict) as refused:
        begin(tenant, files)
    assert refused.value.code == "too_many_uploads"


def test_quotas_hold_exactly_under_a_race(tenant: Any, make_adapter: Any) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_adapters=3)
    sources = [make_adapter(f"a{n}", seed=n) for n in range(10)]
    files = contents(sources[0])
    works: list[Any] = [
        lambda n=n: (
            intake.receive(tenant=tenant, name=f"a{n}", source=sources[n]) if n % 2 else begin(tenant, files, f"u{n}")
        )
        for n in range(10)
    ]
    outcomes = race(*works)
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 3
    assert all(isinstance(o, Conflict) for o in outcomes if isinstance(o, Exception)), outcomes
    assert adapter_quotas.used(tenant).adapters == 3


def test_first_uploads_of_a_name_at_once(tenant: Any, make_adapter: Any) -> None:
    sources = [make_adapter(f"a{n}", seed=n % 4) for n in range(8)]
    outcomes = race(*(lambda s=source: intake.receive(tenant=tenant, name="new", source=s) for source in sources))
    assert all(isinstance(outcome, AdapterVersion) for outcome in outcomes), outcomes
    numbers = sorted(tenant.adapters.get(name="new").versions.values_list("number", flat=True))
    assert numbers == [1, 2, 3, 4], "each content once, whoever came first"


# Killed ---------------------------------------------------------------------------------------------------------------

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
    code = code.format(root=str(Path(__file__).parents[2]), dsn=dsn, data=str(tmp_path / "var"), **values)
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


def test_files_of_one_request_leave_nothing_when_they_are_refused(tenant: Any, make_adapter: Any) -> None:
    """Nothing that no quota counts, and nothing that anybody else waited for."""
    good = contents(make_adapter())
    broken: list[dict[str, bytes]] = [
        {"adapter.tar": b"no tar"},
        {"adapter.tar.gz": b"\x1f\x8b no gzip"},
        {"adapter.tar": tar_of({**good, "evil.sh": b"rm"})},
    ]
    for files in broken:
        with pytest.raises(AdapterRefused):
            one_request(tenant, files)
    Tenant.objects.filter(pk=tenant.pk).update(max_adapters=0)
    with pytest.raises(Conflict):
        one_request(tenant, good)
    incoming = Path(configured.INCOMING_DIR)
    assert [path for path in incoming.rglob("*") if path.name != "uploads"] == []
    assert not AdapterUpload.objects.filter(tenant=tenant).exists()
    Tenant.objects.filter(pk=tenant.pk).update(max_adapters=None)
    version = one_request(tenant, good).version
    assert version is not None
    checked(version)


class Counted(io.BytesIO):
    """A file that knows how many bytes of it were read."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_files_of_one_request_are_read_once(tenant: Any, make_adapter: Any) -> None:
    good = contents(make_adapter())
    for content in (good, {"adapter.tar": tar_of(good)}):
        files = {name: Counted(data) for name, data in content.items()}
        upload = uploads.receive(ACTOR, tenant, name="pirate", files=files)
        assert {name: file.taken for name, file in files.items()} == {name: len(data) for name, data in content.items()}
        assert upload.files == [
            {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in content.items()
        ]
    large = Counted(bytes(uploads.MOST_BYTES["adapter_config.json"] + 1))
    with pytest.raises(Invalid, match=r"adapter_config\.json may have"):
        uploads.receive(
            ACTOR,
            tenant,
            name="pirate",
            files={"adapter_config.json": large, "adapter_model.safetensors": Counted(b"x")},
        )
    assert large.taken == 0


def one_request(tenant: Any, files: dict[str, bytes]) -> AdapterUpload:
    return uploads.receive(ACTOR, tenant, name="pirate", files={name: io.BytesIO(data) for name, data in files.items()})
