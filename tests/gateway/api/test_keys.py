"""``/api/keys``: who may issue, change, rotate and revoke which key, and what the API shows of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from tenants import keys
from tenants.models import AuditEntry, BaseModel, Member, ModelAllowance, Tenant
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

LATER = datetime(2090, 1, 31, tzinfo=UTC)


@pytest.fixture
def llama(tenant: Tenant) -> BaseModel:
    made = BaseModel.objects.create(name="llama", fingerprint="f" * 64, directory="/models/llama", context_length=100)
    ModelAllowance.objects.create(tenant=tenant, base_model=made)
    return made


def issued(asking: Caller, **body: Any) -> dict[str, Any]:
    answer = asking.post("/api/keys", body)
    assert answer.status_code == 201, answer.content
    return answer.json()


def ids(asking: Caller, query: str = "") -> list[str]:
    return [key["id"] for key in asking.get(f"/api/keys?limit=100{query}").json()["data"]]


def member_of(asking: Caller) -> str:
    """The id of the member whose key the caller holds."""
    public_id = keys.parse(asking.secret).public_id
    return str(Member.objects.unscoped().get(api_keys__public_id=public_id).public_id)


def test_a_key_with_everything(caller: Make, llama: BaseModel) -> None:
    owner = caller()
    body = {
        "name": "batch machine",
        "expires_at": "2090-01-31T00:00:00Z",
        "models": ["llama"],
        "addresses": ["203.0.113.7", "2001:db8::/32", "::ffff:198.51.100.0/120"],
        "limits": {"tokens_per_day": 200000, "budget_hard": 0},
    }
    made = issued(owner, **body)
    parsed = keys.parse(made.pop("api_key"))
    assert made["id"] == parsed.public_id
    assert (made["scope"], made["state"], made["member"], made["models"]) == ("inference", "active", None, ["llama"])
    assert made["addresses"] == ["203.0.113.7/32", "2001:db8::/32", "198.51.100.0/24"]
    limits = {name: value for name, value in made["limits"].items() if value is not None}
    assert limits == {"tokens_per_day": 200000, "budget_hard": 0}
    assert datetime.fromisoformat(made["expires_at"]) == LATER
    assert owner.get(f"/api/keys/{made['id']}").json() == made
    assert ids(owner)[0] == made["id"]
    entry = AuditEntry.objects.unscoped().get(subject=made["id"])
    assert (entry.action, entry.actor_kind, entry.after["tokens_per_day"]) == ("key.issued", "key", 200000)
    assert parsed.secret.reveal() not in str(entry.after)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scope": "both"}, "scope"),
        ({"name": "x" * 101}, "name"),
        ({"name": 3}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"member": "nobody"}, "member"),
        ({"expires_at": "yesterday"}, "expires_at"),
        ({"expires_at": 4_000_000_000}, "expires_at"),
        ({"expires_at": "2090-01-31T00:00:00"}, "expires_at"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "9999-01-01T00:00:00Z"}, "expires_at"),
        ({"models": ["mistral"]}, "models"),
        ({"models": ["\0"]}, "models"),
        ({"addresses": []}, "addresses"),
        ({"addresses": ["203.0.113.7/24"]}, "addresses"),
        ({"addresses": ["203.0.113.0/33"]}, "addresses"),
        ({"addresses": ["example.org"]}, "addresses"),
        ({"addresses": ["203.0.113.0/255.255.255.0"]}, "addresses"),
        ({"addresses": ["203.0.113.1"] * 101}, "addresses"),
        ({"limits": {"tokens_per_day": "many"}}, "limits.tokens_per_day"),
        ({"tokens_per_day": 5}, "tokens_per_day"),
        ({"limits": {"max_concurrent": 0}}, "limits.max_concurrent"),
        ({"limits": {"budget_soft": 5, "budget_hard": 4}}, "budget_soft"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_wrong_value_is_named(body: dict[str, Any], param: str, caller: Make, llama: BaseModel) -> None:
    owner = caller()
    found = error(owner.post("/api/keys", body), 404 if param == "member" else 400)["param"] or "member"
    assert found.split("[")[0] == param
    assert len(ids(owner)) == 1, "only the one that asks"


def test_a_model_must_be_the_tenants_to_give(caller: Make, stranger: Caller, llama: BaseModel) -> None:
    assert error(stranger.post("/api/keys", {"models": ["llama"]}), 400)["param"] == "models"


def test_a_developer_has_its_own_keys_only(caller: Make) -> None:
    owner, developer, other = caller(), caller("developer"), caller("developer")
    own = issued(developer)
    assert own["member"] == member_of(developer)
    theirs, accounts = issued(other), issued(owner)
    assert set(ids(developer)) == {own["id"], keys.parse(developer.secret).public_id}
    assert {own["id"], theirs["id"], accounts["id"]} <= set(ids(owner))
    for member in (member_of(other), member_of(caller("owner"))):
        for scope in ("inference", "manage"):
            error(developer.post("/api/keys", {"member": member, "scope": scope}), 403)
    for foreign in (theirs["id"], accounts["id"]):
        untouchable(developer, foreign)
    manage = issued(developer, scope="manage")
    assert error(Caller(None, manage["api_key"]).get("/api/audit"), 403)["code"] == "permission_denied"


def untouchable(asking: Caller, key_id: str) -> None:
    error(asking.get(f"/api/keys/{key_id}"), 404)
    error(asking.patch(f"/api/keys/{key_id}", {"name": "mine"}), 404)
    error(asking.post(f"/api/keys/{key_id}/rotate"), 404)
    error(asking.post(f"/api/keys/{key_id}/revoke"), 404)


def test_an_owner_issues_keys_for_members(caller: Make) -> None:
    owner, developer = caller("owner"), caller("developer")
    made = issued(owner, member=member_of(developer), scope="manage")
    assert made["id"] in ids(developer)
    assert ids(owner, f"&member={member_of(developer)}&scope=manage").count(made["id"]) == 1
    error(Caller(None, made["api_key"]).get("/api/audit"), 403)  # it has the member's role, not the issuer's


def test_a_viewer_changes_nothing(caller: Make) -> None:
    viewer = caller("viewer")
    own = keys.parse(viewer.secret).public_id
    assert ids(viewer) == [own]
    for answer in (
        viewer.post("/api/keys", {}),
        viewer.patch(f"/api/keys/{own}", {"name": "mine"}),
        viewer.post(f"/api/keys/{own}/rotate"),
        viewer.post(f"/api/keys/{own}/revoke"),
    ):
        assert error(answer, 403)["code"] == "permission_denied"


def test_a_strangers_key_is_no_key(caller: Make, stranger: Caller) -> None:
    made = issued(caller())
    for key_id in (made["id"], "nothing", "a b", "%00", "é"):
        untouchable(stranger, key_id)
    assert made["id"] not in ids(stranger)
    error(stranger.post("/api/keys", {"member": member_of(caller("developer"))}), 404)
    error(stranger.get(f"/api/keys?member={member_of(caller('developer'))}"), 404)
    error(stranger.get(f"/api/keys?after={made['id']}"), 400)


def test_changes(caller: Make, llama: BaseModel) -> None:
    owner = caller()
    path = f"/api/keys/{issued(owner, name='a', addresses=['203.0.113.7'], limits={'max_concurrent': 3})['id']}"
    changed = owner.patch(
        path, {"name": "b", "models": ["llama"], "addresses": None, "limits": {"tokens_per_minute": 5}}
    ).json()
    assert (changed["name"], changed["models"], changed["addresses"]) == ("b", ["llama"], None)
    assert (changed["limits"]["max_concurrent"], changed["limits"]["tokens_per_minute"]) == (3, 5)
    changed = owner.patch(
        path, {"models": None, "limits": {"max_concurrent": None}, "expires_at": "2090-01-31T00:00:00Z"}
    ).json()
    assert (changed["models"], changed["limits"]["max_concurrent"], changed["name"]) == (None, None, "b")
    assert owner.patch(path, {}).json() == changed
    error(owner.patch(path, {"addresses": ["x"], "name": "c"}), 400)
    error(owner.patch(path, {"expires_at": "2001-01-01T00:00:00Z"}), 400)
    assert owner.get(path).json() == changed
    owner.post(f"{path}/revoke")
    assert error(owner.patch(path, {"name": "late"}), 409)["code"] == "key_revoked"


def test_rotation_inherits_everything_and_changes_reach_both(caller: Make, llama: BaseModel) -> None:
    owner, developer = caller(), caller("developer")
    old = issued(
        owner,
        member=member_of(developer),
        name="ci",
        models=["llama"],
        addresses=["203.0.113.0/24"],
        limits={"max_concurrent": 3},
        expires_at=(timezone.now() + timedelta(days=90)).isoformat(),
    )
    answer = developer.post(f"/api/keys/{old['id']}/rotate", {"overlap_seconds": 600})
    assert answer.status_code == 201
    new = answer.json()
    assert new["api_key"] != old["api_key"]
    alike = ("name", "scope", "member", "models", "addresses", "limits", "state")
    assert {name: new[name] for name in alike} == {name: old[name] for name in alike}
    assert (new["predecessor"], new["successor"]) == (old["id"], None)
    lives = datetime.fromisoformat(new["expires_at"]) - datetime.fromisoformat(new["created_at"])
    assert abs(lives - timedelta(days=90)) < timedelta(minutes=1)
    old = owner.get(f"/api/keys/{old['id']}").json()
    assert (old["state"], old["successor"]) == ("active", new["id"])
    assert datetime.fromisoformat(old["expires_at"]) < timezone.now() + timedelta(seconds=601)
    assert error(owner.post(f"/api/keys/{old['id']}/rotate"), 409)["code"] == "rotated_already"

    last = owner.post(f"/api/keys/{new['id']}/rotate", {"overlap_seconds": 0}).json()
    assert owner.get(f"/api/keys/{new['id']}").json()["state"] == "revoked"
    owner.patch(f"/api/keys/{last['id']}", {"limits": {"max_concurrent": 9}, "models": None, "addresses": ["::1"]})
    for key_id in (old["id"], new["id"], last["id"]):
        found = owner.get(f"/api/keys/{key_id}").json()
        assert (found["limits"]["max_concurrent"], found["models"], found["addresses"]) == (9, None, ["::1/128"])

    owner.post(f"/api/keys/{last['id']}/revoke")
    assert owner.get(f"/api/keys/{old['id']}").json()["state"] == "active", "only one of the line was revoked"
    assert error(owner.post(f"/api/keys/{last['id']}/rotate"), 409)["code"] == "key_revoked"


@pytest.mark.parametrize("overlap", [-1, 30 * 86_400 + 1, "1", 1.5])
def test_an_overlap_has_bounds(overlap: Any, caller: Make) -> None:
    owner = caller()
    path = f"/api/keys/{issued(owner)['id']}/rotate"
    assert error(owner.post(path, {"overlap_seconds": overlap}), 400)["param"] == "overlap_seconds"


def test_revocation(caller: Make) -> None:
    owner = caller()
    made = issued(owner, scope="manage")
    program = Caller(None, made["api_key"])
    assert program.get("/api/keys").status_code == 200
    first = owner.post(f"/api/keys/{made['id']}/revoke").json()
    assert first["state"] == "revoked"
    assert owner.post(f"/api/keys/{made['id']}/revoke").json() == first
    assert AuditEntry.objects.unscoped().filter(subject=made["id"], action="key.revoked").count() == 1
    error(program.get("/api/keys"), 401)


def test_a_repeated_issue_shows_no_secret(caller: Make) -> None:
    owner = caller()
    first, second = (owner.post("/api/keys", {"name": "x"}, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert second.json() == {**first.json(), "api_key": None}
    assert len(ids(owner)) == 2


def test_the_address_of_a_manage_key_counts(caller: Make) -> None:
    owner = caller()
    inside = issued(owner, scope="manage", addresses=["127.0.0.0/8"])
    outside = issued(owner, scope="manage", addresses=["203.0.113.0/24"])
    assert Caller(None, inside["api_key"]).get("/api/keys").status_code == 200
    assert error(Caller(None, outside["api_key"]).get("/api/keys"), 403)["code"] == "address_not_allowed"


def test_the_list_takes_as_many_queries_for_one_as_for_many(
    caller: Make, llama: BaseModel, django_assert_max_num_queries: Any
) -> None:
    owner = caller()
    for number in range(12):
        issued(owner, models=["llama"], name=str(number))
    with django_assert_max_num_queries(5):
        assert len(ids(owner)) == 13
