"""Members over the management API: roles, limits, models, leaving, and the owner that always remains."""

from __future__ import annotations

import re
import threading
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants import audit, membership
from tenants.actors import Actor
from tenants.callers import Role
from tenants.errors import Conflict, NotFound
from tenants.models import ApiKey, AuditEntry, BaseModel, Invitation, Member, ModelAllowance, Plan, Tenant
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

ACTOR = Actor("command", "tests")
NOBODY = "01890000-0000-7000-8000-000000000000"


def add(tenant: Tenant, name: str, role: str) -> Member:
    user = get_user_model().objects.create_user(name, f"{name}@example.org")
    member: Member = Member.objects.create(tenant=tenant, user=user, role=role)
    return member


@pytest.fixture
def owner(tenant: Tenant) -> Member:
    return add(tenant, "ada", "owner")


@pytest.fixture
def viewer(tenant: Tenant) -> Member:
    return add(tenant, "vera", "viewer")


def path(member: Member) -> str:
    return f"/api/members/{member.public_id}"


def test_members_are_listed_without_a_number(caller: Make, owner: Member, viewer: Member) -> None:
    found = caller("viewer").get("/api/members").json()["data"]
    assert {row["username"]: row["role"] for row in found}.items() >= {"ada": "owner", "vera": "viewer"}.items()
    one = caller().get(path(owner)).json()
    assert UUID(one["id"]).version == 7
    assert (one["email"], one["models"], one["limits"]["tokens_per_day"]) == ("ada@example.org", None, None)
    assert str(owner.pk) not in {one["id"], one.get("user")}


def test_the_list_costs_the_same_however_many_there_are(caller: Make, tenant: Tenant, owner: Member) -> None:
    asking = caller()
    asking.get("/api/members")
    with CaptureQueriesContext(connection) as few:
        asking.get("/api/members")
    for number in range(30):
        member = add(tenant, f"m-{number}", "viewer")
        Member.objects.filter(tenant=tenant, pk=member.pk).update(only_models=[number], only_adapters=[number])
    with CaptureQueriesContext(connection) as many:
        assert len(asking.get("/api/members?limit=100").json()["data"]) == 31
    assert len(many) == len(few) + 2  # the names of models and adapters


def test_an_owner_changes_role_limits_and_models(caller: Make, tenant: Tenant, owner: Member, viewer: Member) -> None:
    base = BaseModel.objects.create(
        name="tiny", fingerprint="f" * 64, directory="/models/tiny", context_length=100, config={}
    )
    ModelAllowance.objects.create(tenant=tenant, base_model=base)
    body = {"role": "developer", "limits": {"tokens_per_day": 1000}, "models": ["tiny"]}
    changed = caller().patch(path(viewer), body).json()
    assert (changed["role"], changed["models"], changed["limits"]["tokens_per_day"]) == ("developer", ["tiny"], 1000)
    changed = caller().patch(path(viewer), {"limits": {"tokens_per_day": None}, "models": None}).json()
    assert (changed["role"], changed["models"], changed["limits"]["tokens_per_day"]) == ("developer", None, None)
    actions = AuditEntry.objects.filter(tenant=tenant, subject="vera").values_list("action", flat=True)
    assert sorted(actions) == sorted(["member.role_changed", *["member.restricted", "member.limits_changed"] * 2])
    (entry,) = AuditEntry.objects.filter(tenant=tenant, action="member.role_changed")
    assert (entry.before, entry.after) == ({"role": "viewer"}, {"role": "developer"})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"role": "king"}, "role"),
        ({"role": 1}, "role"),
        ({"limits": {"tokens_per_day": "5"}}, "limits.tokens_per_day"),
        ({"tokens_per_day": 5}, "tokens_per_day"),
        ({"limits": {"tokens_per_day": 0}}, "limits.tokens_per_day"),
        ({"limits": {"tokens_per_day": 2**63}}, "limits.tokens_per_day"),
        ({"limits": {"max_concurrent": 2**31}}, "limits.max_concurrent"),
        ({"models": ["nothing"]}, "models"),
        ({"models": "tiny"}, "models"),
        ({"models": ["a\0"]}, "models"),
        ({"limits": {"budget_soft": 5, "budget_hard": 4}}, "budget_soft"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_changes_nothing(
    body: Any, param: str, caller: Make, tenant: Tenant, owner: Member, viewer: Member
) -> None:
    found = error(caller().patch(path(viewer), {"role": "developer", **body}), 400)
    assert re.split(r"\[", found["param"] or "")[0] == param
    viewer.refresh_from_db()
    assert viewer.role == "viewer"
    assert not AuditEntry.objects.filter(tenant=tenant).exists()


def test_only_owners_change_members_and_everybody_may_leave(caller: Make, tenant: Tenant, owner: Member) -> None:
    for role in ("developer", "viewer"):
        asking = caller(role)
        for answer in (asking.patch(path(owner), {"role": "viewer"}), asking.delete(path(owner))):
            assert error(answer, 403)["code"] == "permission_denied"
        myself = Member.objects.get(tenant=tenant, role=role)
        assert asking.delete(path(myself)).status_code == 204
        assert error(asking.get("/api/members"), 401)["code"] == "invalid_api_key"


def test_a_stranger_finds_no_member(caller: Make, stranger: Caller, owner: Member, viewer: Member) -> None:
    for member in (f"/api/members/{NOBODY}", path(viewer)):
        for answer in (stranger.get(member), stranger.patch(member, {"role": "owner"}), stranger.delete(member)):
            found = error(answer, 404)
            assert found["message"].replace(str(viewer.public_id), NOBODY) == f"There is no member '{NOBODY}'."
    assert stranger.get("/api/members").json()["data"] == []
    for wrong in ("x", "%00", "1"):
        error(stranger.get(f"/api/members/{wrong}"), 404)


# Leaving --------------------------------------------------------------------------------------------------------------


def test_a_removed_members_keys_are_revoked_and_its_invitations_void(
    caller: Make, tenant: Tenant, owner: Member
) -> None:
    eve = add(tenant, "eve", "owner")
    kept, _ = ApiKey.issue(tenant, member=owner)
    keys = [ApiKey.issue(tenant, member=eve, scope=scope)[0] for scope in ("inference", "manage")]
    body = {"email": "new@example.org", "role": "viewer"}
    from tenants import invitations

    invitations.invite(ACTOR, tenant, body["email"], Role.VIEWER, by=eve)
    assert caller().delete(path(eve)).status_code == 204
    for key in keys:
        key.refresh_from_db()
        assert key.revoked_at is not None
        assert key.member is None
    kept.refresh_from_db()
    assert kept.revoked_at is None
    assert Invitation.objects.get(tenant=tenant).state == "revoked"
    assert get_user_model().objects.filter(username="eve").exists()
    actions = list(AuditEntry.objects.filter(tenant=tenant).order_by("pk").values_list("action", flat=True))
    assert actions == ["invitation.made", "key.revoked", "key.revoked", "invitation.revoked", "member.removed"]
    error(caller().delete(path(eve)), 404)


def test_the_last_owner_stays(caller: Make, tenant: Tenant, owner: Member) -> None:
    other = add(tenant, "off", "owner")
    other.user.is_active = False
    other.user.save()
    asking = caller()
    for answer in (asking.patch(path(owner), {"role": "viewer"}), asking.delete(path(owner))):
        assert error(answer, 409)["code"] == membership.LAST_OWNER
    assert asking.delete(path(other)).status_code == 204


def test_a_repeated_removal_answers_alike(caller: Make, owner: Member, viewer: Member) -> None:
    asking = caller()
    answers = [asking.delete(path(viewer), **{"Idempotency-Key": "once"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [204, 204]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", ["remove", "demote", "both"])
def test_of_two_owners_who_end_each_other_one_remains(change: str) -> None:
    tenant = Tenant.objects.create(slug="acme", display_name="Acme", plan=Plan.objects.create(name="p"))
    for turn in range(10):
        owners = [add(tenant, f"owner-{turn}-{n}", "owner") for n in range(4)]
        start, refused = threading.Barrier(4), []

        def end(member: Member, start: Any = start, refused: Any = refused) -> None:
            start.wait()
            try:
                if change == "remove" or (change == "both" and member.pk % 2):
                    membership.remove(ACTOR, member)
                else:
                    membership.change_role(ACTOR, member, Role.VIEWER)
            except Conflict as error:
                refused.append(error.code)
            finally:
                connection.close()

        threads = [threading.Thread(target=end, args=(member,)) for member in owners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == [membership.LAST_OWNER]
        (last,) = Member.objects.filter(tenant=tenant, role="owner")
        Member.objects.filter(pk=last.pk, tenant=tenant).delete()


@pytest.mark.django_db(transaction=True)
def test_no_key_outlives_a_removal_that_it_raced_with() -> None:
    tenant = Tenant.objects.create(slug="acme", display_name="Acme", plan=Plan.objects.create(name="p"))
    add(tenant, "ada", "owner")
    for turn in range(10):
        member, start = add(tenant, f"m-{turn}", "developer"), threading.Barrier(2)

        def issue(member: Member = member, start: Any = start) -> None:
            start.wait()
            try:
                ApiKey.issue(tenant, member=member)
            except Exception as error:  # the member was gone first
                assert "member" in str(error)  # noqa: PT017
            finally:
                connection.close()

        thread = threading.Thread(target=issue)
        thread.start()
        start.wait()
        membership.remove(ACTOR, member)
        thread.join()
        assert not ApiKey.objects.filter(tenant=tenant, revoked_at=None).exists()
    with pytest.raises(NotFound):
        membership.remove(ACTOR, member)


def test_the_audit_log_names_what_was_lost(tenant: Tenant, owner: Member, viewer: Member) -> None:
    membership.remove(ACTOR, viewer)
    entry = AuditEntry.objects.get(tenant=tenant, action="member.removed")
    assert (entry.subject, entry.before, entry.after) == ("vera", {"role": "viewer"}, {})
    assert audit.snapshot(owner, ("role",)) == {"role": "owner"}
