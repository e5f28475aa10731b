"""Adapters over the management API: uploads by parts, versions with their reports, shares, quotas; and strangers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from tenants import intake, tasks, upload_files
from tenants.models import Adapter, AdapterVersion, AuditEntry, BaseModel, ModelAllowance, Tenant
from tests.gateway.api.conftest import Caller, Make
from tests.tenants.adapter_parts import as_json, contents
from tests.tenants.conftest import LLAMA, write_adapter


def error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.content
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


@pytest.fixture
def base(tenant: Tenant, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaseModel:
    """Tests run in a transaction that never commits; what waits for that is done by :func:`committed`."""
    settings.INCOMING_DIR = tmp_path / "incoming"
    settings.ADAPTER_STORE = tmp_path / "store"
    monkeypatch.setattr(tasks.check_adapter, "delay", lambda pk: None)
    base = BaseModel.objects.create(
        name="llama-tiny", fingerprint="f" * 64, directory="/models/llama-tiny", context_length=1000, config=LLAMA
    )
    ModelAllowance.objects.create(tenant=tenant, base_model=base)
    return base


@pytest.fixture
def parts(base: BaseModel, tmp_path: Path) -> dict[str, bytes]:
    return contents(write_adapter(tmp_path / "source"))


def put(caller: Caller, upload: str, name: str, data: bytes, offset: int = 0, **headers: str) -> Any:
    return Client(raise_request_exception=False).put(
        f"/api/uploads/{upload}/files/{name}?offset={offset}",
        data=data,
        content_type="application/octet-stream",
        headers={"Authorization": f"Bearer {caller.secret}", **headers},
    )


def announce(caller: Caller, parts: dict[str, bytes], name: str = "pirate") -> str:
    answer = caller.post("/api/uploads", {"adapter": name, "files": as_json(parts)})
    assert answer.status_code == 201, answer.content
    identifier: str = answer.json()["id"]
    return identifier


def uploaded(caller: Caller, parts: dict[str, bytes], name: str = "pirate") -> AdapterVersion:
    upload = announce(caller, parts, name)
    for file, data in parts.items():
        assert put(caller, upload, file, data).status_code == 200
    answer = caller.post(f"/api/uploads/{upload}/complete")
    assert answer.status_code == 200, answer.content
    assert caller.tenant is not None
    version: AdapterVersion = AdapterVersion.objects.get(
        adapter__tenant=caller.tenant, adapter__name=name, number=answer.json()["version"]
    )
    intake.check(version.pk)
    version.refresh_from_db()
    return version


def test_an_upload_by_parts(caller: Make, parts: dict[str, bytes], settings: Any) -> None:
    developer = caller("developer")
    upload = announce(developer, parts)
    name, data = "adapter_model.safetensors", parts["adapter_model.safetensors"]
    shown = put(developer, upload, name, data[:50]).json()
    assert (shown["state"], shown["part_bytes"]) == ("open", settings.MAX_BODY_BYTES)
    assert {file["name"]: file["received"] for file in shown["files"]} == {"adapter_config.json": 0, name: 50}
    assert error(put(developer, upload, name, data[:50]), 409)["code"] == "wrong_offset"
    assert error(put(developer, upload, name, b"x" * len(data), 50), 400)["param"] == "offset"
    assert error(developer.post(f"/api/uploads/{upload}/complete"), 409)["code"] == "incomplete"
    assert put(developer, upload, name, data[50:], 50).status_code == 200
    assert put(developer, upload, "adapter_config.json", parts["adapter_config.json"]).status_code == 200
    for _ in range(2):
        done = developer.post(f"/api/uploads/{upload}/complete").json()
        assert (done["state"], done["version"], done["adapter"]) == ("completed", 1, "pirate")
    assert [row["id"] for row in developer.get("/api/uploads").json()["data"]] == [upload]
    version = developer.get("/api/adapters/pirate/versions/1").json()
    assert (version["state"], version["bytes"], version["report"]) == ("pending", sum(map(len, parts.values())), None)
    adapter = developer.get("/api/adapters/pirate").json()
    assert (adapter["model"], adapter["base_model"], adapter["version"]) == ("acme/pirate", "llama-tiny", None)
    assert AuditEntry.objects.filter(tenant=developer.tenant, action="upload.completed").count() == 1


def test_a_part_sent_twice_with_one_idempotency_key_is_kept_once(caller: Make, parts: dict[str, bytes]) -> None:
    owner, name = caller(), "adapter_config.json"
    upload = announce(owner, parts)
    first = put(owner, upload, name, parts[name][:10], **{"Idempotency-Key": "part-1"})
    again = put(owner, upload, name, parts[name][:10], **{"Idempotency-Key": "part-1"})
    assert (first.json(), again["Idempotency-Replayed"]) == (again.json(), "true")
    assert put(owner, upload, name, parts[name][10:], 10).status_code == 200
    body = {"adapter": "other", "files": as_json(parts)}
    made = [owner.post("/api/uploads", body, **{"Idempotency-Key": "make"}).json()["id"] for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "adapter"),
        ({"adapter": "x"}, "files"),
        ({"adapter": 3, "files": []}, "adapter"),
        ({"adapter": "x", "files": "x"}, "files"),
        ({"adapter": "x", "files": [{"name": "a"}]}, "files[0].size"),
        ({"adapter": "x", "files": [{"name": "adapter.tar", "size": "9", "sha256": "0" * 64}]}, "files[0].size"),
        ({"adapter": "x", "files": [{"name": "adapter.tar", "size": 9, "sha256": "0"}]}, "files"),
        ({"adapter": "x", "files": [{"name": "../x", "size": 9, "sha256": "0" * 64}]}, "files"),
        ({"adapter": "X Y", "files": [{"name": "adapter.tar", "size": 9, "sha256": "0" * 64}]}, "adapter"),
        ({"adapter": "a\0", "files": [{"name": "adapter.tar", "size": 9, "sha256": "0" * 64}]}, "adapter"),
        ({"adapter": "x", "surprise": 1, "files": []}, "surprise"),
        (
            {"adapter": "x", "base_model": "a\0b", "files": [{"name": "adapter.tar", "size": 9, "sha256": "0"}]},
            "base_model",
        ),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], param: str, caller: Make, base: BaseModel) -> None:
    found = error(caller().post("/api/uploads", body), 400)
    assert param in f"{found['param']} {found['message']}"


def test_quotas_are_shown_and_refuse(caller: Make, parts: dict[str, bytes], tenant: Tenant) -> None:
    owner = caller()
    Tenant.objects.filter(pk=tenant.pk).update(max_adapters=1)
    uploaded(owner, parts)
    quotas = owner.get("/api/adapter-quotas").json()
    assert quotas["adapters"] == {"used": 1, "limit": 1}
    assert quotas["bytes"] == {"used": sum(map(len, parts.values())), "limit": None}
    refused = error(owner.post("/api/uploads", {"adapter": "second", "files": as_json(parts)}), 409)
    assert refused["code"] == "quota_exceeded"


def test_a_rejected_version_says_everything_that_is_wrong(caller: Make, base: BaseModel, tmp_path: Path) -> None:
    bad = write_adapter(tmp_path / "bad", bias="all", surprise=1, modules_to_save=["lm_head"], r=7)
    version = uploaded(caller(), contents(bad))
    shown = caller("viewer").get("/api/adapters/pirate/versions/1").json()
    assert (shown["state"], shown["number"]) == ("rejected", version.number)
    fields = {problem["field"]: problem["advice"] for problem in shown["report"]["problems"]}
    assert {"bias", "surprise", "modules_to_save", "r"} <= fields.keys(), "not only the first"
    assert all(fields[name] for name in ("bias", "surprise", "modules_to_save", "r"))


def test_two_versions_are_compared(caller: Make, operator: Caller, base: BaseModel, tmp_path: Path) -> None:
    developer, viewer = caller("developer"), caller("viewer")
    uploaded(developer, contents(write_adapter(tmp_path / "one")))
    uploaded(developer, contents(write_adapter(tmp_path / "two", rank=4)))
    found = viewer.get("/api/adapters/pirate/compare?from=1&to=2").json()
    assert (found["before"], found["after"], found["same_modules"]) == (1, 2, 0)
    figures = {change["name"]: (change["before"], change["after"]) for change in found["figures"]}
    assert figures["largest rank"] == (2, 4)
    assert {"name": "r", "before": 2, "after": 4} in found["config"]
    assert {(change["before"]["rank"], change["after"]["rank"]) for change in found["modules"]} == {(2, 4)}
    own = operator.get("/api/operator/tenants/acme/adapters/pirate/compare?from=1&to=2")
    assert (own.status_code, own.json()) == (200, found)
    same = viewer.get("/api/adapters/pirate/compare?from=2&to=2").json()
    assert (same["figures"], same["config"], same["modules"]) == ([], [], [])
    assert same["same_modules"] == len(found["modules"])
    for query, param in (("", "from"), ("?from=1", "to"), ("?from=0&to=1", "from"), ("?from=1&to=x", "to")):
        assert error(viewer.get(f"/api/adapters/pirate/compare{query}"), 400)["param"] == param
    for query in ("from=1&to=3", f"from={'9' * 30}&to=1"):
        error(viewer.get(f"/api/adapters/pirate/compare?{query}"), 404)


def test_pages_of_adapters_and_versions(caller: Make, base: BaseModel, tenant: Tenant) -> None:
    for name in ("c", "a", "b"):
        adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base)
        for number in (1, 2, 3):
            AdapterVersion.objects.create(adapter=adapter, number=number, state="rejected", report={"message": "x"})
    viewer = caller("viewer")
    first = viewer.get("/api/adapters?limit=2").json()
    second = viewer.get(f"/api/adapters?limit=2&after={first['last_id']}").json()
    assert [row["name"] for row in first["data"] + second["data"]] == ["a", "b", "c"]
    numbers = [row["number"] for row in viewer.get("/api/adapters/a/versions?after=3").json()["data"]]
    assert numbers == [2, 1]
    for after in ("x", "%00", "9" * 30, "-1"):
        for path in ("/api/adapters", "/api/adapters/a/versions", "/api/adapters/a/shares", "/api/shared-adapters"):
            assert error(viewer.get(f"{path}?after={after}"), 400)["param"] == "after"


def test_shares(caller: Make, stranger: Caller, base: BaseModel, parts: dict[str, bytes]) -> None:
    owner = caller()
    uploaded(owner, parts)
    receiver = stranger.get("/api/account-id").json()["id"]
    assert str(stranger.tenant.pk) == receiver
    for _ in range(2):
        made = owner.post("/api/adapters/pirate/shares", {"account_id": receiver})
        assert (made.status_code, made.json()["tenant"]) == (201, "globex")
    assert [row["tenant"] for row in owner.get("/api/adapters/pirate/shares").json()["data"]] == ["globex"]
    shared = stranger.get("/api/shared-adapters").json()
    assert [(row["model"], row["usable"]) for row in shared["data"]] == [("acme/pirate", False)]
    assert shared["last_id"] == "acme/pirate", "no number that counts other accounts' shares"
    assert stranger.get("/api/shared-adapters?after=acme/pirate").json()["data"] == []
    assert error(stranger.get("/api/adapters/pirate"), 404), "a share shows what it is called, no more"
    refused = error(owner.delete("/api/adapters/pirate"), 409)
    assert (refused["code"], "globex" in refused["message"]) == ("in_use", True)
    assert owner.delete(f"/api/adapters/pirate/shares/{receiver}").status_code == 204
    assert error(owner.delete(f"/api/adapters/pirate/shares/{receiver}"), 404)
    assert stranger.get("/api/shared-adapters").json()["data"] == []
    assert owner.delete("/api/adapters/pirate").status_code == 204
    assert error(owner.get("/api/adapters/pirate"), 404)
    for wrong, status in ((str(uuid4()), 404), ("globex", 400), (3, 400)):
        uploaded(owner, parts)
        assert error(owner.post("/api/adapters/pirate/shares", {"account_id": wrong}), status)["param"] == "account_id"


def test_each_role(caller: Make, parts: dict[str, bytes]) -> None:
    owner, developer, viewer = caller(), caller("developer"), caller("viewer")
    uploaded(developer, parts)
    receiver = {"account_id": str(uuid4())}
    assert viewer.get("/api/adapters").status_code == 200
    assert error(viewer.get("/api/uploads"), 403)
    assert error(viewer.delete("/api/adapters/pirate"), 403)
    assert error(viewer.delete("/api/adapters/pirate/versions/1"), 403)
    for other in (viewer, developer):
        assert error(other.post("/api/adapters/pirate/shares", receiver), 403)
        assert error(other.delete(f"/api/adapters/pirate/shares/{uuid4()}"), 403)
    assert error(owner.post("/api/adapters/pirate/shares", receiver), 404)
    assert developer.delete("/api/adapters/pirate").status_code == 204


def test_a_stranger_finds_no_adapter(caller: Make, stranger: Caller, parts: dict[str, bytes]) -> None:
    owner = caller()
    uploaded(owner, parts)
    for method, path, body in (
        ("get", "/api/adapters/pirate", None),
        ("delete", "/api/adapters/pirate", None),
        ("get", "/api/adapters/pirate/versions", None),
        ("get", "/api/adapters/pirate/versions/1", None),
        ("get", "/api/adapters/pirate/compare?from=1&to=1", None),
        ("delete", "/api/adapters/pirate/versions/1", None),
        ("get", "/api/adapters/pirate/shares", None),
        ("post", "/api/adapters/pirate/shares", {"account_id": str(uuid4())}),
        ("delete", f"/api/adapters/pirate/shares/{uuid4()}", None),
    ):
        arguments = () if body is None else (body,)
        theirs = error(getattr(stranger, method)(path, *arguments), 404)
        nobodys = error(getattr(stranger, method)(path.replace("pirate", "nobody"), *arguments), 404)
        assert theirs["message"].replace("pirate", "nobody") == nobodys["message"]
    assert stranger.get("/api/adapters").json()["data"] == []
    assert stranger.get("/api/shared-adapters").json()["data"] == []
    assert stranger.get("/api/adapter-quotas").json()["adapters"]["used"] == 0
    assert stranger.get("/api/account-id").json() != owner.get("/api/account-id").json()
    assert owner.get("/api/adapters/pirate").status_code == 200


def test_a_stranger_finds_no_upload(caller: Make, stranger: Caller, parts: dict[str, bytes]) -> None:
    upload = announce(caller(), parts)
    for identifier in (upload, str(uuid4())):
        path = f"/api/uploads/{identifier}"
        name = "adapter_config.json"
        for answer in (
            stranger.get(path),
            stranger.delete(path),
            stranger.post(f"{path}/complete"),
            put(stranger, identifier, name, b"x"),
        ):
            assert error(answer, 404)["message"] == f"There is no upload {identifier!r}."
    assert stranger.get("/api/uploads").json()["data"] == []
    assert caller().get(f"/api/uploads/{upload}").json()["state"] == "open"
    assert not upload_files.folder().exists()


def test_hostile_names_in_paths_are_not_found(caller: Make, parts: dict[str, bytes]) -> None:
    owner = caller()
    upload = announce(owner, parts)
    for name in ("%00", "..%2f..%2fetc%2fpasswd", "%ff", "a%00b", "%2e%2e", "x" * 5000):
        for path in (f"/api/adapters/{name}", f"/api/adapters/{name}/versions", f"/api/adapters/{name}/shares"):
            assert owner.get(path).status_code == 404
        assert put(owner, upload, name, b"x").status_code == 404
    for number in ("0", "-1", "x", "9" * 40):
        assert owner.get(f"/api/adapters/pirate/versions/{number}").status_code in {400, 404}


def test_the_number_of_queries_does_not_grow(
    caller: Make, base: BaseModel, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    for n in range(20):
        adapter = Adapter.objects.create(tenant=tenant, name=f"a{n}", base_model=base)
        version = AdapterVersion.objects.create(adapter=adapter, number=1, state="rejected", report={"message": "x"})
        Adapter.objects.filter(tenant=tenant, pk=adapter.pk).update(current=version)
    viewer = caller("viewer")
    with django_assert_max_num_queries(6):
        assert len(viewer.get("/api/adapters").json()["data"]) == 20
