"""Uploads part by part: what is kept when something breaks, what is refused, and the quotas."""

from __future__ import annotations

import hashlib
import io
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as configured
from django.utils import timezone

from tenants import adapter_quotas, intake, upload_files, uploads
from tenants.errors import AdapterRefused, Conflict, Invalid, NotConfigured, NotFound
from tenants.models import AdapterUpload, AuditEntry, ModelAllowance, Tenant
from tests.tenants.adapter_parts import contents, declared, tar_of
from tests.tenants.uploads.steps import ACTOR, begin, checked, finish, send


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
