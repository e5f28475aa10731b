"""Commands for members, invitations and operators."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.test import Client

from gateway.config.provider import Provider
from tenants.models import ApiKey, AuditEntry, Identity, Invitation, Member, Tenant
from tenants.proofs import MAIL
from tests.gateway.accounts.conftest import make_person

HOST = "http://127.0.0.1:8000"


def run(*arguments: str) -> dict[str, Any]:
    out, words = io.StringIO(), io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    result: dict[str, Any] = json.loads(out.getvalue())
    words.write(load_command_class(get_commands()[arguments[0]], arguments[0]).describe(result))
    assert words.getvalue().strip()
    return result


def refused(*arguments: str) -> str:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def actions(tenant: Tenant | None) -> list[str]:
    entries = AuditEntry.objects.unscoped().filter(tenant=tenant).order_by("pk")
    assert {entry.actor_kind for entry in entries} <= {"command", "member", "operator"}
    return [entry.action for entry in entries]


def test_a_first_owner_is_invited_and_comes_in(acme: Tenant) -> None:
    made = run("invite_member", "acme", "--email", "Ada@example.org", "--role", "owner")
    assert (made["email"], made["role"], made["mailed"]) == ("ada@example.org", "owner", False)
    browser = Client()
    assert browser.get(made["link"].removeprefix(HOST)).status_code == 302
    new = {"password": "a quiet green lamp", "again": "a quiet green lamp"}
    assert browser.post("/accounts/invitation", new).status_code == 302
    (member,) = run("members", "acme")["members"]
    assert (member["username"], member["role"]) == ("ada@example.org", "owner")
    assert made["link"].rpartition("/")[2] not in str(AuditEntry.objects.unscoped().values())
    assert actions(acme) == ["invitation.made", "member.joined"]


def test_an_invitation_is_taken_back(acme: Tenant) -> None:
    made = run("invite_member", "acme", "--email", "ada@example.org")
    (row,) = run("members", "acme")["invitations"]
    assert (row["email"], row["role"], row["state"]) == ("ada@example.org", "viewer", "open")
    assert run("revoke_invitation", "acme", "--email", "ADA@example.org")["state"] == "revoked"
    assert Client().get(made["link"].removeprefix(HOST)).status_code == 404
    assert "no open invitation" in refused("revoke_invitation", "acme", "--email", "ada@example.org")
    assert "no e-mail address" in refused("invite_member", "acme", "--email", "nobody")
    assert Invitation.objects.get(tenant=acme).state == "revoked"


def test_roles_change_and_members_go(acme: Tenant) -> None:
    ada, eve = make_person("ada", (acme, "owner")), make_person("eve", (acme, "viewer"))
    key, _ = ApiKey.issue(acme, member=eve.member)
    assert run("set_role", "acme", "--member", "eve", "--role", "developer")["role"] == "developer"
    assert run("remove_member", "acme", "--member", "eve")["keys_revoked"] == 1
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert "needs an owner" in refused("remove_member", "acme", "--member", "ada")
    assert "needs an owner" in refused("set_role", "acme", "--member", "ada", "--role", "viewer")
    assert "no member" in refused("remove_member", "acme", "--member", "eve")
    assert Member.objects.get(tenant=acme).user == ada.user
    assert actions(acme) == ["member.role_changed", "key.revoked", "member.removed"]


def test_an_operator_is_made_and_unmade(db: None) -> None:
    made = run("create_operator", "grace", "--email", "grace@example.org")
    assert "already" in refused("create_operator", "grace", "--email", "grace@example.org")
    browser = Client()
    new = {"password": "a quiet green lamp", "again": "a quiet green lamp"}
    assert browser.post(made["link"].removeprefix(HOST), new).status_code == 302
    entered = browser.post("/accounts/sign-in", {"username": "grace", "password": new["password"]})
    assert entered.status_code == 302
    assert browser.get("/api/operator/tenants").status_code == 200
    (one,) = run("operators")["operators"]
    assert (one["username"], one["active"]) == ("grace", True)
    assert "without an operator" in refused("remove_operator", "grace")
    waiting = run("create_operator", "hedy", "--email", "hedy@example.org")
    for command in ("remove_operator", "switch_off_account"):
        assert "without an operator who can sign in" in refused(command, "grace")
    assert Client().post(waiting["link"].removeprefix(HOST), new).status_code == 302
    run("remove_operator", "grace")
    assert browser.get("/api/operator/tenants").status_code == 403
    assert "no operator" in refused("remove_operator", "grace")
    assert actions(None)[:3] == ["operator.created", "account.password_changed", "account.signed_in"]


def test_an_operator_who_signs_in_through_the_provider_is_enough(db: None) -> None:
    make_person("grace", is_staff=True)
    for name in ("hedy", "irene"):
        run("create_operator", name, "--email", f"{name}@example.org")
    hedy = get_user_model().objects.get(username="hedy")
    Identity.objects.create(user=hedy, issuer=MAIL, subject="hedy@example.org")
    run("remove_operator", "irene")  # who never could
    assert "who can sign in" in refused("switch_off_account", "grace")
    Identity.objects.create(user=hedy, issuer="https://id.example.org", subject="7")
    assert run("switch_off_account", "grace")["active"] is False


def test_an_account_is_switched_off_and_on(acme: Tenant) -> None:
    ada, eve = make_person("ada", (acme, "owner")), make_person("eve", (acme, "owner"))
    ApiKey.issue(acme, member=eve.member)
    browser, _ = eve.sign_in(), ada.sign_in()
    assert browser.get("/api/members").status_code == 200
    assert run("switch_off_account", "eve") == {"username": "eve", "active": False, "keys_revoked": 1}
    assert browser.get("/api/members").status_code == 401
    assert "needs an owner" in refused("switch_off_account", "ada")
    assert "no account" in refused("switch_off_account", "nobody")
    assert run("switch_on_account", "eve")["active"] is True
    assert browser.get("/api/members").status_code == 401
    assert ada.browser.get("/api/members").status_code == 200
    assert run("switch_off_account", "ada")["keys_revoked"] == 0
    assert not get_user_model().objects.get(pk=ada.user.pk).is_active
    assert actions(acme) == ["key.revoked", "member.switched_off", "member.switched_on", "member.switched_off"]
    assert "account.switched_off" in actions(None)


def test_an_operators_address_is_nobody_elses(acme: Tenant) -> None:
    make_person("ada", (acme, "owner"))
    assert "free_address" in refused("create_operator", "grace", "--email", "ADA@example.org")
    assert not get_user_model().objects.filter(username="grace").exists()
    assert run("free_address", "Ada@example.org")["usernames"] == ["ada"]
    run("create_operator", "grace", "--email", "ada@example.org")
    assert "operator's" in refused("free_address", "ada@example.org")
    assert "no account" in refused("free_address", "nobody@example.org")
    assert actions(None)[:2] == ["account.address_lost", "operator.created"]


def test_a_member_is_no_operator_and_a_changing_call_needs_the_token(acme: Tenant) -> None:
    ada = make_person("ada", (acme, "owner"))
    ada.sign_in()
    answer = ada.call("get", "/api/operator/tenants")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    grace = make_person("grace", is_staff=True)
    grace.sign_in()
    body = {"slug": "initech", "display_name": "Initech"}
    answer = grace.browser.post("/api/operator/tenants", body, content_type="application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "csrf_failed")
    assert grace.call("post", "/api/operator/tenants", body).status_code == 201
    entry = AuditEntry.objects.unscoped().get(action="tenant.created")
    assert (entry.actor_kind, entry.actor_name) == ("operator", "grace")


def test_a_forgotten_password_and_a_linked_identity(acme: Tenant, settings: Any) -> None:
    make_person("ada", (acme, "owner"))
    link = run("password_link", "ada")["link"].removeprefix(HOST)
    assert Client().get(link).status_code == 200
    assert "no account" in refused("password_link", "nobody")
    assert "LORAPLEX_OIDC_ISSUER" in refused("link_identity", "ada", "--subject", "1")
    settings.OIDC = Provider("https://login.example.org", "x", None, "x", frozenset())
    assert run("link_identity", "ada", "--subject", "1")["issuer"] == "https://login.example.org"
    assert "already" in refused("link_identity", "ada", "--subject", "1")
    assert Identity.objects.get().user == get_user_model().objects.get(username="ada")
    assert actions(None) == ["account.password_link_made", "identity.linked"]
