"""Releases over REST: promote, canary, rollback, policy, trials; pins, waivers and residency for operators."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.models import Worker
from inference.adapter_format import store_path
from tenants.models import Activation, Adapter, AdapterVersion, ApiKey, AuditEntry, BaseModel, Tenant
from tests.gateway.api.conftest import Caller

PATH = "/api/adapters/pirate"


@pytest.fixture
def base(db: None) -> BaseModel:
    return BaseModel.objects.create(
        name="tiny", fingerprint="f" * 64, directory="/models/tiny", context_length=512, config={}
    )


@pytest.fixture
def adapter(tenant: Tenant, base: BaseModel) -> Adapter:
    """acme/pirate: 1 is current, 2 is ready, 3 was rejected by its trial."""
    adapter = Adapter.objects.create(tenant=tenant, name="pirate", base_model=base)
    versions = [
        AdapterVersion.objects.create(adapter=adapter, number=number, state=state, digest=f"{number}" * 64)
        for number, state in ((1, "ready"), (2, "ready"), (3, "rejected"))
    ]
    adapter.current = versions[0]
    adapter.save()
    report = {"passed": False, "message": "The adapter changes nothing."}
    Activation.objects.create(tenant=tenant, version=versions[2], state="failed", report=report)
    return adapter


@pytest.fixture
def owner(caller: Any) -> Caller:
    made: Caller = caller()
    return made


def test_canary_promotion_and_rollback(owner: Caller, adapter: Adapter, tenant: Tenant) -> None:
    canary = owner.post(f"{PATH}/canary", {"version": 2, "percent": 10})
    assert (canary.status_code, canary.json()["canary"], canary.json()["canary_percent"]) == (200, 2, 10)
    shown = owner.get(PATH).json()
    assert (shown["version"], shown["canary"], shown["canary_percent"]) == (1, 2, 10)
    assert owner.post(f"{PATH}/promote", {}).json()["version"] == 2, "without a version: the canary"
    back = owner.post(f"{PATH}/rollback").json()
    assert (back["version"], back["kind"], back["number"]) == (1, "rollback", 4)
    listed = owner.get(f"{PATH}/releases?limit=2").json()
    assert ([row["number"] for row in listed["data"]], listed["has_more"]) == ([4, 3], True)
    rest = owner.get(f"{PATH}/releases?after={listed['last_id']}").json()
    assert [row["kind"] for row in rest["data"]] == ["canary", "automatic"]
    key = ApiKey.objects.get(tenant=tenant)
    assert listed["data"][0]["made_by"] == f"key {key.public_id}"
    actions = list(AuditEntry.objects.filter(tenant=tenant).values_list("action", flat=True))
    assert actions == ["adapter.rolled_back", "adapter.promoted", "adapter.canary_set"]


def test_a_repetition_releases_once(owner: Caller, adapter: Adapter) -> None:
    sent = [owner.post(f"{PATH}/promote", {"version": 2}, **{"Idempotency-Key": "one"}).json() for _ in range(2)]
    assert sent[0] == sent[1]
    assert len(owner.get(f"{PATH}/releases").json()["data"]) == 2
    once = [owner.post(f"{PATH}/rollback", **{"Idempotency-Key": "two"}).status_code for _ in range(2)]
    assert once == [200, 200], "the second one found its answer, not another release to go back to"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("canary", {"version": 2, "percent": 101}, "percent"),
        ("canary", {"version": 2, "percent": -1}, "percent"),
        ("canary", {"version": 2, "percent": "10"}, "percent"),
        ("canary", {"version": 2, "percent": 1.5}, "percent"),
        ("canary", {"percent": 10}, "version"),
        ("canary", {"version": 0, "percent": 10}, "version"),
        ("promote", {"version": 2**40}, "version"),
        ("promote", {"version": "2"}, "version"),
        ("promote", {"versoin": 2}, "versoin"),
    ],
)
def test_wrong_bodies_name_their_field(
    owner: Caller, adapter: Adapter, path: str, body: dict[str, Any], param: str
) -> None:
    answer = owner.post(f"{PATH}/{path}", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_cannot_be_released(owner: Caller, adapter: Adapter) -> None:
    assert owner.post(f"{PATH}/promote", {"version": 9}).status_code == 404
    assert owner.post("/api/adapters/nobody/promote", {"version": 1}).status_code == 404
    refused = owner.post(f"{PATH}/promote", {"version": 3})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_ready")
    assert owner.post(f"{PATH}/rollback").json()["error"]["code"] == "no_previous_release"


def test_policy(owner: Caller, adapter: Adapter) -> None:
    assert owner.get(f"{PATH}/release-policy").json()["auto_promote"] is True
    assert owner.patch(f"{PATH}/release-policy", {"auto_promote": False}).json()["auto_promote"] is False
    assert owner.patch(f"{PATH}/release-policy", {"auto_promote": 0}).status_code == 400
    adapter.refresh_from_db()
    assert adapter.auto_promote is False


@pytest.mark.parametrize("role", ["viewer", "developer"])
def test_viewers_read_and_developers_release(caller: Any, adapter: Adapter, role: str) -> None:
    somebody: Caller = caller(role)
    assert somebody.get(f"{PATH}/releases").status_code == 200
    expected = 200 if role == "developer" else 403
    assert somebody.post(f"{PATH}/canary", {"version": 2, "percent": 5}).status_code == expected
    assert somebody.post(f"{PATH}/promote", {"version": 2}).status_code == expected
    assert somebody.patch(f"{PATH}/release-policy", {"auto_promote": True}).status_code == expected
    assert somebody.post(f"{PATH}/rollback").status_code == expected


def test_a_stranger_gets_what_nobodys_adapter_gives(stranger: Caller, adapter: Adapter) -> None:
    def answers(name: str) -> list[Any]:
        path = f"/api/adapters/{name}"
        found = [
            stranger.get(f"{path}/releases"),
            stranger.get(f"{path}/release-policy"),
            stranger.patch(f"{path}/release-policy", {"auto_promote": False}),
            stranger.post(f"{path}/promote", {"version": 2}),
            stranger.post(f"{path}/canary", {"version": 2, "percent": 5}),
            stranger.post(f"{path}/rollback"),
            stranger.post(f"{path}/versions/3/trial"),
        ]
        return [(answer.status_code, answer.content.replace(name.encode(), b"it")) for answer in found]

    assert answers("pirate") == answers("nobody")
    assert {status for status, _ in answers("pirate")} == {404}
    adapter.refresh_from_db()
    assert (adapter.current.number, adapter.canary, adapter.auto_promote) == (1, None, True)  # type: ignore[union-attr]


@pytest.fixture
def stored(settings: Any, tmp_path: Any) -> None:
    settings.ADAPTER_STORE = tmp_path
    store_path(tmp_path, "3" * 64).mkdir(parents=True)


@pytest.mark.usefixtures("stored")
def test_a_trial_is_asked_for_again(owner: Caller, adapter: Adapter) -> None:
    shown = owner.get(f"{PATH}/versions/3").json()
    assert shown["trial"] == {"state": "failed", "report": {"passed": False, "message": "The adapter changes nothing."}}
    answer = owner.post(f"{PATH}/versions/3/trial")
    assert (answer.status_code, answer.json()["state"]) == (202, "checked")
    assert owner.get(f"{PATH}/versions/3").json()["trial"]["state"] == "waiting"
    refused = owner.post(f"{PATH}/versions/1/trial")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_trial")
    assert owner.post(f"{PATH}/versions/9/trial").status_code == 404


def test_files_that_are_gone_cannot_be_tried(owner: Caller, adapter: Adapter, settings: Any, tmp_path: Any) -> None:
    settings.ADAPTER_STORE = tmp_path
    assert owner.post(f"{PATH}/versions/3/trial").json()["error"]["code"] == "files_gone"


@pytest.mark.usefixtures("stored")
def test_an_operator_waives_a_trial(operator: Caller, owner: Caller, adapter: Adapter, tenant: Tenant) -> None:
    path = "/api/operator/tenants/acme/adapters/pirate/versions/3/waiver"
    assert owner.post(path, {"reason": "mine"}).status_code in {401, 403}
    assert operator.post(path, {}).json()["error"]["param"] == "reason"
    answer = operator.post(path, {"reason": "tried by hand"})
    assert (answer.status_code, answer.json()) == (200, {"adapter": "acme/pirate", "number": 3, "state": "ready"})
    assert owner.get(PATH).json()["version"] == 3
    entry = AuditEntry.objects.filter(tenant=tenant, action="adapter.version_ready").get()
    assert (entry.actor_kind, entry.actor_name, entry.after["message"]) == ("operator", "tests", "tried by hand")
    assert operator.post(path, {"reason": "again"}).status_code == 409
    assert operator.post(path.replace("acme", "nobody"), {"reason": "x"}).status_code == 404


def test_an_operator_pins_and_sees_residency(
    operator: Caller, owner: Caller, adapter: Adapter, base: BaseModel
) -> None:
    path = "/api/operator/tenants/acme/adapters/pirate/pin"
    assert operator.put(path, {"pinned": True}).json() == {"adapter": "acme/pirate", "pinned": True}
    assert owner.get(f"{PATH}/release-policy").json()["pinned"] is True
    assert operator.put(path, {"pinned": "yes"}).status_code == 400
    Worker.objects.create(name="gone", url="http://127.0.0.1:9", base_model=base)
    (row,) = operator.get("/api/operator/residency").json()["data"]
    assert (row["worker"], row["slots"], row["resident"], row["missing"]) == ("gone", None, [], [])
    assert row["problem"]
    assert owner.get("/api/operator/residency").status_code in {401, 403}
    assert owner.put(path, {"pinned": False}).status_code in {401, 403}


def test_an_operator_releases_for_a_tenant(operator: Caller, adapter: Adapter, tenant: Tenant) -> None:
    answer = operator.post("/api/operator/tenants/acme/adapters/pirate/promote", {"version": 2})
    assert (answer.status_code, answer.json()["made_by"]) == (200, "operator tests")
