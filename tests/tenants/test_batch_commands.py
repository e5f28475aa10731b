"""``upload_file`` and ``create_batch``: a batch made from the command line."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.utils import timezone

from tenants import files
from tenants.models import ApiKey, AuditEntry, Batch, File, Tenant
from tests.tenants.conftest import make_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _folder(settings: Any, tmp_path: Path) -> None:
    settings.FILES_DIR = tmp_path / "files"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"{}\n")
    return path


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    result: dict[str, Any] = json.loads(out.getvalue())
    assert load_command_class("tenants", arguments[0]).describe(result).strip()
    return result


def test_from_a_path_to_a_batch(acme: Tenant, lines: Path) -> None:
    key, _ = ApiKey.issue(acme)
    sent = run("upload_file", "acme", "--path", str(lines), "--expires-in-seconds", "3600")
    file = File.objects.get(tenant=acme)
    assert (sent["id"], sent["filename"], sent["bytes"]) == (file.pk, "requests.jsonl", 3)
    assert files.content_path(file).read_bytes() == lines.read_bytes()
    assert list(files.incoming().parent.iterdir()) == []
    assert datetime.fromisoformat(sent["expires_at"]) - file.created_at == timedelta(hours=1)
    made = run("create_batch", "acme", "--file", file.pk, "--key", key.public_id)
    batch = Batch.objects.get(tenant=acme)
    assert (made["id"], made["status"], batch.key, batch.output_seconds) == (batch.pk, "validating", key, None)
    actions = AuditEntry.objects.filter(tenant=acme, actor_kind="command").values_list("action", flat=True)
    assert set(actions) == {"file.uploaded", "batch.created"}


def test_what_cannot_be_is_one_sentence(acme: Tenant, lines: Path, settings: Any) -> None:
    key, _ = ApiKey.issue(acme)
    manage, _ = ApiKey.issue(acme, scope="manage")
    ended, _ = ApiKey.issue(acme)
    ApiKey.objects.filter(tenant=acme, pk=ended.pk).update(revoked_at=timezone.now())
    foreign, _ = ApiKey.issue(make_tenant("globex"))
    file = run("upload_file", "acme", "--path", str(lines), "--filename", "a\0b")
    assert file["filename"] == "a\\x00b"
    settings.MAX_FILE_BYTES = 2
    batch = ("create_batch", "acme", "--file", file["id"], "--key")
    for words, says in (
        (("upload_file", "nobody", "--path", str(lines)), "no tenant"),
        (("upload_file", "acme", "--path", "/nowhere"), "--path /nowhere cannot be copied"),
        (("upload_file", "acme", "--path", str(lines.parent)), "--path"),
        (("upload_file", "acme", "--path", str(lines)), "larger than 2 bytes"),
        (("upload_file", "acme", "--path", str(lines), "--expires-in-seconds", "1"), "--expires-in-seconds"),
        (("create_batch", "globex", "--file", file["id"], "--key", foreign.public_id), "no file"),
        (("create_batch", "acme", "--file", "none-such", "--key", key.public_id), "no file"),
        ((*batch, foreign.public_id), "no key"),
        ((*batch, manage.public_id), "scope inference"),
        ((*batch, ended.public_id), "scope inference"),
        ((*batch, key.public_id, "--output-expires-in-seconds", "1"), "--output-expires-in-seconds"),
    ):
        with pytest.raises(CommandError, match=says) as refused:
            call_command(*words)
        assert len(str(refused.value).splitlines()) == 1
    assert (File.objects.filter(tenant=acme).count(), Batch.objects.filter(tenant=acme).count()) == (1, 0)
