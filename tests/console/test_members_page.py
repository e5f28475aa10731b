"""Members and invitations: seen by all, changed by owners."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tenants import invitations
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import ApiKey, AuditEntry, Invitation, Member, ModelAllowance
from tests.console.opened import opened
from tests.console.people import client_of, member, operator
from tests.console.test_tenants_page import text_of
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner(acme: Actor) -> Client:
    return client_of(member(acme.tenant, name="ada"))


def row_of(user: User) -> Member:
    found: Member = Member.objects.unscoped().select_related("tenant").get(user=user)
    return found


def path(user: User, action: str = "") -> str:
    return f"/console/t/acme/members/{row_of(user).public_id}{action}"


def names(answer: Any) -> list[str]:
    return [str(each.user) for each in answer.context["listing"].items]


def test_members_are_listed_and_searched(house: House, acme: Actor, owner: Client) -> None:
    member(acme.tenant, Role.DEVELOPER, "bob")
    member(house.actor("other").tenant, Role.OWNER, "eve")
    assert names(owner.get("/console/t/acme/members")) == ["bob", "ada"]
    assert names(owner.get("/console/t/acme/members", {"q": "BO"})) == ["bob"]
    assert names(owner.get("/console/t/acme/members", {"q": "Owner"})) == ["ada"]
    assert "No member is called" in text_of(owner.get("/console/t/acme/members", {"q": "eve\0"}))
    assert "1 open" not in text_of(owner.get("/console/t/acme/members"))
    viewer = client_of(member(acme.tenant, Role.VIEWER)).get("/console/t/acme/members").content.decode()
    assert "ada" in viewer
    assert "/console/t/acme/members/invite" not in viewer
    assert "/console/t/acme/members/leave" in viewer
    nobody = client_of(operator()).get("/console/t/other/members", {"q": "zoe"})
    assert "Perhaps they have not accepted" in text_of(nobody)


def test_as_many_queries_for_many_members(house: House, acme: Actor, owner: Client) -> None:
    counts = {"members": [], "members/invitations": []}  # type: dict[str, list[int]]
    by = Doer("command", "tests")
    for more in (3, 30):
        for number in range(more):
            user = member(acme.tenant, Role.DEVELOPER)
            ApiKey.issue(acme.tenant, member=row_of(user))
            invited = f"p{more}-{number}@example.org"
            invitations.invite(by, acme.tenant, invited, Role.VIEWER, by=row_of(user))
        for place, found in counts.items():
            with CaptureQueriesContext(connection) as queries:
                assert owner.get(f"/console/t/acme/{place}").status_code == 200
            found.append(len(queries))
    assert all(found[0] == found[1] for found in counts.values())


def test_role_models_and_limits_change_together(house: House, acme: Actor, owner: Client) -> None:
    house.adapter(acme, "pirate")
    bob = member(acme.tenant, Role.VIEWER, "bob")
    form = owner.get(path(bob, "/change")).content.decode()
    assert re.search(r'value="every"[^>]*checked', form)
    wanted = {"role": "developer", "scope": "some", "models": f"{house.base.name}\nacme/pirate, acme/pirate"}
    limits = {"tokens_per_day": "5000", "budget_hard": "1.5"}
    answer = owner.post(path(bob, "/change"), opened(owner, path(bob, "/change")) | wanted | limits)
    assert answer["Location"] == path(bob)
    words = text_of(owner.get(path(bob)))
    assert "Role developer" in words
    assert f"{house.base.name} , acme/pirate" in words
    assert "Tokens per day (UTC) 5 000 0 5 000" in words
    assert "1.50 USD" in words
    done = AuditEntry.objects.filter(tenant=acme.tenant, subject="bob").values_list("action", flat=True)
    assert set(done) == {"member.role_changed", "member.restricted", "member.limits_changed"}
    owner.post(path(bob, "/change"), opened(owner, path(bob, "/change")) | {"scope": "every", "tokens_per_day": ""})
    assert row_of(bob).only_models is None
    assert row_of(bob).tokens_per_day is None


def test_a_stale_form_gives_nothing_back(house: House, acme: Actor, owner: Client) -> None:
    """A member who was demoted and restricted while the form was open stays so; a limit that was changed is set."""
    bob = member(acme.tenant, Role.OWNER, "bob")
    stale, fresh = (opened(owner, path(bob, "/change")) for _ in range(2))
    taken = {"role": "viewer", "scope": "some", "models": house.base.name, "tokens_per_day": "7"}
    owner.post(path(bob, "/change"), fresh | taken)
    assert owner.post(path(bob, "/change"), stale | {"requests_per_minute": "9"}).status_code == 302
    now = row_of(bob)
    assert (now.role, now.only_models, now.tokens_per_day) == ("viewer", [house.base.pk], 7)
    assert now.requests_per_minute == 9
    assert owner.post(path(bob, "/change"), stale | {"scope": "some", "models": house.base.name}).status_code == 302
    done = AuditEntry.objects.filter(tenant=acme.tenant, subject="bob").values_list("action", flat=True)
    assert sorted(done) == ["member.limits_changed"] * 2 + ["member.restricted", "member.role_changed"]


@pytest.mark.parametrize("gone", ["withdrawn", "deleted"])
def test_a_member_restricted_to_models_that_are_gone_can_be_changed(
    gone: str, house: House, acme: Actor, owner: Client
) -> None:
    house.adapter(acme, "pirate")
    bob = member(acme.tenant, Role.OWNER, "bob")
    models = {"scope": "some", "models": house.base.name if gone == "withdrawn" else "acme/pirate"}
    owner.post(path(bob, "/change"), opened(owner, path(bob, "/change")) | models)
    restricted = row_of(bob)
    if gone == "withdrawn":
        ModelAllowance.objects.filter(tenant=acme.tenant).delete()
    else:
        Member.objects.filter(tenant=acme.tenant, user=bob).update(only_adapters=[10**6])
        restricted.only_adapters = [10**6]
        assert "restricted to are gone" in text_of(owner.get(path(bob, "/change")))
    change = {"role": "viewer", "tokens_per_day": "5"}
    answer = owner.post(path(bob, "/change"), opened(owner, path(bob, "/change")) | change)
    assert answer.status_code == 302
    now = row_of(bob)
    assert (now.role, now.tokens_per_day) == ("viewer", 5)
    assert (now.only_models, now.only_adapters) == (restricted.only_models, restricted.only_adapters)


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"role": "king"}, "role", "not one of the available choices"),
        ({"models": "tiny"}, "models", "All models are chosen above"),
        ({"scope": "some"}, "models", "Name at least one model"),
        ({"scope": "some", "models": "nosuch"}, "models", "acme has no model"),
        ({"scope": "some", "models": " ".join(f"m{n}" for n in range(1001))}, "models", "1000 are the most"),
        ({"models": "\0"}, "models", "Null characters"),
        ({"requests_per_minute": "-3"}, "requests_per_minute", "greater than or equal to 1"),
    ],
)
def test_a_wrong_change_changes_nothing(
    acme: Actor, owner: Client, wrong: dict[str, str], field: str, words: str
) -> None:
    bob = member(acme.tenant, Role.VIEWER, "bob")
    answer = owner.post(path(bob, "/change"), opened(owner, path(bob, "/change")) | {"role": "developer"} | wrong)
    assert answer.status_code == 400
    assert words in " ".join(answer.context["form"].errors[field])
    assert row_of(bob).role == "viewer"


def test_the_last_owner_stays(acme: Actor, owner: Client) -> None:
    ada = Member.objects.get(tenant=acme.tenant).user
    answer = owner.post(path(ada, "/change"), opened(owner, path(ada, "/change")) | {"role": "viewer"})
    assert "needs an owner" in text_of(answer)
    assert "needs an owner" in text_of(owner.post(path(ada, "/remove")))
    assert "needs an owner" in text_of(owner.post("/console/t/acme/members/leave"))
    assert row_of(ada).role == "owner"


def test_removal_asks_and_says_what_ends(acme: Actor, owner: Client) -> None:
    bob = member(acme.tenant, Role.DEVELOPER, "bob")
    key, _ = ApiKey.issue(acme.tenant, member=row_of(bob))
    asked = text_of(owner.get(path(bob, "/remove")))
    assert "1 key will be revoked" in asked
    assert "0 running requests will end" in asked
    assert owner.post(path(bob, "/remove"))["Location"] == "/console/t/acme/members"
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert not Member.objects.filter(tenant=acme.tenant, user=bob).exists()
    assert AuditEntry.objects.filter(tenant=acme.tenant, action="member.removed", subject="bob").count() == 1


def test_everybody_may_leave_and_only_owners_remove(acme: Actor, owner: Client) -> None:
    bob, carl = member(acme.tenant, Role.VIEWER, "bob"), member(acme.tenant, Role.DEVELOPER, "carl")
    client = client_of(bob)
    for action in ("/remove", "/change"):
        assert client.get(path(carl, action)).status_code == 403
        assert client.post(path(carl, action)).status_code == 403
    assert client.post("/console/t/acme/members/leave")["Location"] == "/console/"
    assert client.get("/console/t/acme/members").status_code == 404
    assert Member.objects.filter(tenant=acme.tenant, user=carl).exists()
    nothing = client_of(operator()).post("/console/t/acme/members/leave")
    assert "as an operator" in text_of(nothing)


INVITE = "/console/t/acme/members/invite"


def filled(client: Client, **fields: str) -> dict[str, str]:
    """The form for inviting as a browser sends it."""
    found = re.search(r'name="once" value="(\w+)"', client.get(INVITE).content.decode())
    assert found is not None
    return {"once": found[1], "email": "bob@example.org", "role": "viewer"} | fields


def test_an_invitation_sent_twice_keeps_its_first_link(acme: Actor, owner: Client) -> None:
    form = filled(owner)
    found = re.search(r"/accounts/invitations/([A-Za-z0-9_-]{43})", owner.post(INVITE, form).content.decode())
    assert found is not None
    again = owner.post(INVITE, form)
    assert again.status_code == 200
    assert "bob@example.org was invited already" in text_of(again)
    assert "/accounts/invitations/" not in again.content.decode()
    invitation = invitations.of_token(found[1])
    assert Invitation.objects.filter(tenant=acme.tenant).count() == 1
    assert AuditEntry.objects.filter(tenant=acme.tenant, action="invitation.made").count() == 1
    owner.post(f"/console/t/acme/members/invitations/{invitation.pk}/revoke")
    assert "It is revoked by now" in text_of(owner.post(INVITE, form))
    assert "sent before, with other words" in text_of(owner.post(INVITE, form | {"email": "eve@example.org"}))
    assert Invitation.objects.filter(tenant=acme.tenant).count() == 1
    owner.post(INVITE, filled(owner))
    assert Invitation.objects.filter(tenant=acme.tenant).count() == 2


def test_an_invitation_is_shown_once_and_taken_back(acme: Actor, owner: Client) -> None:
    answer = owner.post(INVITE, filled(owner, email="Bob@Example.org", role="developer"))
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    found = re.search(r'value="http[^"]*/accounts/invitations/([A-Za-z0-9_-]{43})"', answer.content.decode())
    assert found is not None
    invitation = invitations.of_token(found[1])
    assert (invitation.email, invitation.role, str(invitation.invited_by)) == (
        "bob@example.org",
        "developer",
        str(Member.objects.get(tenant=acme.tenant)),
    )
    listed = owner.get("/console/t/acme/members/invitations")
    assert "bob@example.org" in text_of(listed)
    assert found[1] not in listed.content.decode()
    assert found[1] not in str(list(AuditEntry.objects.filter(tenant=acme.tenant).values()))
    assert "Nobody with" in text_of(owner.get("/console/t/acme/members/invitations", {"q": "zoe"}))
    assert "1 open invitation" in text_of(owner.get("/console/t/acme/members"))
    owner.post(f"/console/t/acme/members/invitations/{invitation.pk}/revoke")
    invitation.refresh_from_db()
    assert invitation.state == "revoked"
    invitation.accepted_at, invitation.revoked_at = invitation.created_at, None
    invitation.save()
    assert "accepted already" in text_of(owner.post(f"/console/t/acme/members/invitations/{invitation.pk}/revoke"))


def test_an_operators_invitation_says_that_one_invited(acme: Actor) -> None:
    root = client_of(operator())
    root.post(INVITE, filled(root, email="bob@example.org"))
    assert "an operator" in text_of(root.get("/console/t/acme/members/invitations"))


def test_the_first_to_be_invited_is_an_owner(acme: Actor) -> None:
    root = client_of(operator())
    Member.objects.filter(tenant=acme.tenant).delete()
    assert chosen(root) == "owner"
    member(acme.tenant, Role.DEVELOPER)
    assert chosen(root) == "owner"
    member(acme.tenant)
    assert chosen(root) == "viewer"


def chosen(client: Client) -> str:
    """The role that the form for inviting proposes."""
    (found,) = re.findall(r'<option value="(\w+)" selected', client.get(INVITE).content.decode())
    return str(found)


def test_with_mail_no_link_is_shown(
    acme: Actor,
    owner: Client,
    settings: Any,
    django_capture_on_commit_callbacks: Any,
) -> None:
    settings.MAIL = True
    with django_capture_on_commit_callbacks(execute=True):
        form = filled(owner)
        answer = owner.post(INVITE, form)
    assert answer["Location"] == "/console/t/acme/members/invitations"
    assert [message.to for message in mail.outbox] == [["bob@example.org"]]
    after = owner.get(answer["Location"]).content.decode()
    assert "invited by mail" in after
    with django_capture_on_commit_callbacks(execute=True):
        assert "was invited already" in text_of(owner.post(INVITE, form))
    assert len(mail.outbox) == 1
    assert "/accounts/invitations/" not in after


@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"email": "nobody"}, "email", "'nobody' is no e-mail address."),
        ({"email": ""}, "email", "required"),
        ({"email": "a" * 151}, "email", "at most 150"),
        ({"email": "ada@example.org"}, "email", "is a member already"),
        ({"role": "king"}, "role", "not one of the available choices"),
    ],
)
def test_a_wrong_invitation(acme: Actor, owner: Client, wrong: dict[str, str], field: str, words: str) -> None:
    answer = owner.post(INVITE, filled(owner, **wrong))
    assert words in " ".join(answer.context["form"].errors[field])
    assert not Invitation.objects.filter(tenant=acme.tenant).exists()
