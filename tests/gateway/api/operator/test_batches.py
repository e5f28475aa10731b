"""Batches and files in an operator's hands: everybody's batches, and what a tenant's own people do at ``/v1``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.test.client import encode_multipart
from django.utils import timezone

from gateway.api import api
from tenants import batches, files
from tenants.actors import Actor
from tenants.models import ApiKey, AuditEntry, Batch, File, PayloadStoring, Tenant
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

OWN = "/api/operator/tenants/acme"
CHAT = "/v1/chat/completions"
LINES = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'


@pytest.fixture(autouse=True)
def _folder(settings: Any, tmp_path: Path) -> None:
    settings.FILES_DIR = tmp_path


def send(operator: Caller, content: bytes = LINES, key: str | None = None, **fields: str) -> Any:
    """With a boundary of its own, as clients have one each time."""
    boundary = uuid4().hex
    form = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", content), **fields}
    headers = {"Authorization": f"Bearer {operator.secret}"} | ({} if key is None else {"Idempotency-Key": key})
    kind, body = f"multipart/form-data; boundary={boundary}", encode_multipart(boundary, form)
    return Client(raise_request_exception=False).generic("POST", f"{OWN}/files", body, kind, headers=headers)


def batch_of(tenant: Tenant, key: ApiKey | None = None) -> Batch:
    path = files.incoming()
    path.write_bytes(LINES)
    actor = Actor("command", "tests")
    file = files.receive(actor, tenant, path, "in.jsonl", files.KEPT)
    return batches.create(actor, key or ApiKey.issue(tenant)[0], input_file_id=file.pk, endpoint=CHAT)


def by_operator(action: str) -> int:
    return AuditEntry.objects.filter(tenant__slug="acme", action=action, actor_kind="operator").count()


def wanted(key: ApiKey, file_id: str) -> dict[str, str]:
    return {"key": key.public_id, "input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}


def test_every_route_of_files_and_batches_is_an_operators_too() -> None:
    own: set[tuple[str, str]] = {("POST", "/v1/files")}
    mounted: set[tuple[str, str]] = set()
    prefix = "/api/operator/tenants/{tenant}/"
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            names = {method for operation in view.operations for method in operation.methods}
            if path.startswith(("/v1/files", "/v1/batches")):
                own |= {(method, path) for method in names}
            if path.startswith(prefix):
                mounted |= {(method, path.replace(prefix, "/v1/")) for method in names}
    assert len(own) == 9
    assert own <= mounted


def test_from_upload_to_cancel(operator: Caller, tenant: Tenant) -> None:
    key, _ = ApiKey.issue(tenant)
    file = send(operator, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}).json()
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(LINES), "in.jsonl", "batch")
    assert file["expires_at"] == file["created_at"] + 3600
    assert files.content_path(File.objects.get(tenant=tenant)).read_bytes() == LINES
    assert list((files.incoming().parent).iterdir()) == []
    assert [row["id"] for row in operator.get(f"{OWN}/files?purpose=batch").json()["data"]] == [file["id"]]
    assert operator.get(f"{OWN}/files/{file['id']}").json() == file
    made = operator.post(f"{OWN}/batches", wanted(key, file["id"]))
    assert made.status_code == 200, made.content
    batch = made.json()
    assert Batch.objects.get(tenant=tenant).key == key
    assert operator.get(f"{OWN}/batches/{batch['id']}").json() == batch
    assert [row["id"] for row in operator.get(f"{OWN}/batches").json()["data"]] == [batch["id"]]
    assert error(operator.delete(f"{OWN}/files/{file['id']}"), 409)["code"] == "file_in_use"
    assert operator.post(f"{OWN}/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
    Batch.objects.filter(tenant=tenant).update(status="cancelled")
    assert operator.delete(f"{OWN}/files/{file['id']}").json()["deleted"] is True
    for action in ("file.uploaded", "batch.created", "batch.cancelled", "file.deleted"):
        assert by_operator(action) == 1, action


def test_changes_happen_once_for_their_key(operator: Caller, tenant: Tenant) -> None:
    key, _ = ApiKey.issue(tenant)
    first, again = send(operator, key="file"), send(operator, key="file")
    assert first.status_code == 200, first.content
    assert (again.json(), again["Idempotency-Replayed"]) == (first.json(), "true")
    assert error(send(operator, b"{}\n", key="file"), 409)["code"] == "idempotency_key_reused"
    assert error(send(operator, key="file", **{"expires_after[anchor]": "created_at"}), 409)
    assert File.objects.filter(tenant=tenant).count() == 1
    body, header = wanted(key, first.json()["id"]), {"Idempotency-Key": "batch"}
    made = [operator.post(f"{OWN}/batches", body, **header).json()["id"] for _ in range(2)]
    assert made[0] == made[1]
    header = {"Idempotency-Key": "cancel"}
    for _ in range(2):
        assert operator.post(f"{OWN}/batches/{made[0]}/cancel", **header).json()["status"] == "cancelling"


def test_everybodys_batches_by_filter_and_page(operator: Caller, tenant: Tenant, stranger: Caller) -> None:
    assert stranger.tenant is not None
    mine, theirs, last = batch_of(tenant), batch_of(stranger.tenant), batch_of(tenant)
    Batch.objects.filter(tenant=tenant, pk=mine.pk).update(status="completed")

    def found(query: str) -> list[str]:
        answer = operator.get(f"/api/operator/batches{query}")
        assert answer.status_code == 200, answer.content
        return [row["id"] for row in answer.json()["data"]]

    assert found("") == [last.pk, theirs.pk, mine.pk]
    assert found("?limit=1") == [last.pk]
    assert found(f"?after={last.pk}") == [theirs.pk, mine.pk]
    assert found("?tenant=globex") == [theirs.pk]
    assert found("?status=completed") == [mine.pk]
    assert found(f"?input_file_id={last.input_file_id}&tenant=acme") == [last.pk]
    row = operator.get("/api/operator/batches?tenant=globex").json()["data"][0]
    assert (row["tenant"], row["key"]) == ("globex", theirs.key.public_id)
    assert error(operator.get("/api/operator/batches?tenant=nobody"), 404)["param"] == "tenant"
    assert error(operator.get("/api/operator/batches?status=lost"), 400)["param"] == "status"
    assert error(operator.get("/api/operator/batches?after=x"), 400)["param"] == "after"


def test_one_tenants_path_shows_no_other_tenants(operator: Caller, tenant: Tenant, stranger: Caller) -> None:
    assert stranger.tenant is not None
    batch = batch_of(stranger.tenant)
    assert operator.get(f"{OWN}/batches").json()["data"] == operator.get(f"{OWN}/files").json()["data"] == []
    for path in (f"batches/{batch.pk}", f"files/{batch.input_file_id}", f"files/{batch.input_file_id}/content"):
        error(operator.get(f"{OWN}/{path}"), 404)
    error(operator.post(f"{OWN}/batches/{batch.pk}/cancel"), 404)
    error(operator.delete(f"{OWN}/files/{batch.input_file_id}"), 404)
    mine = send(operator).json()["id"]
    key, _ = ApiKey.issue(tenant)
    assert error(operator.post(f"{OWN}/batches", wanted(key, batch.input_file_id)), 404)["param"] == "input_file_id"
    assert error(operator.post(f"{OWN}/batches", wanted(batch.key, mine)), 404)["param"] == "key"


def test_a_batch_runs_under_a_working_inference_key_of_the_account(operator: Caller, caller: Make) -> None:
    file = send(operator).json()["id"]
    caller("developer", scope="inference")
    caller()
    caller(scope="inference", expires_at=timezone.now() - timedelta(seconds=1))
    for key in ApiKey.objects.filter(tenant__slug="acme"):
        assert error(operator.post(f"{OWN}/batches", wanted(key, file)), 404)["param"] == "key"
    assert not Batch.objects.filter(tenant__slug="acme").exists()


def test_contents_need_the_accounts_permission(operator: Caller, tenant: Tenant) -> None:
    file = send(operator).json()["id"]
    error(operator.get(f"{OWN}/files/{file}/content"), 403)
    PayloadStoring.objects.create(tenant=tenant, days=1, operators_may_read=True)
    answer = operator.get(f"{OWN}/files/{file}/content")
    assert answer.status_code == 200

    async def read() -> bytes:
        return b"".join([chunk async for chunk in answer.streaming_content])

    assert async_to_sync(read)() == LINES
    assert by_operator("batch.read") == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"surprise": "1"}, "surprise"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "x"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"}, "expires_after.seconds"),
    ],
)
def test_a_wrong_form_is_refused_by_field(operator: Caller, tenant: Tenant, fields: dict[str, str], param: str) -> None:
    assert error(send(operator, **fields), 400)["param"] == param
    assert not File.objects.filter(tenant=tenant).exists()


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=x", "application/json"])
@pytest.mark.parametrize("key", [None, "once"])
def test_what_is_no_form_is_refused(operator: Caller, tenant: Tenant, kind: str, key: str | None) -> None:
    headers = {"Authorization": f"Bearer {operator.secret}"} | ({} if key is None else {"Idempotency-Key": key})
    client = Client(raise_request_exception=False)
    answer = client.generic("POST", f"{OWN}/files", b"--x\r\nnonsense", kind, headers=headers)
    error(answer, 400)


def test_an_operator_who_is_signed_in_sends_a_form(tenant: Tenant) -> None:
    user = get_user_model().objects.create_superuser("ada", "ada@example.org", "a long password 1")
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(user)
    client.get("/accounts/sign-in")
    form = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", LINES)}
    error(client.post(f"{OWN}/files", form), 403)
    form["file"] = SimpleUploadedFile("in.jsonl", LINES)
    token = {"X-CSRFToken": client.cookies["csrftoken"].value, "Idempotency-Key": "one"}
    sent = client.post(f"{OWN}/files", form, headers=token)
    assert sent.status_code == 200, sent.content


def test_a_file_that_is_too_large_is_refused(operator: Caller, tenant: Tenant, settings: Any) -> None:
    settings.MAX_FILE_BYTES = len(LINES) - 1
    assert error(send(operator), 413)["code"] == "request_too_large"
    assert not File.objects.filter(tenant=tenant).exists()
