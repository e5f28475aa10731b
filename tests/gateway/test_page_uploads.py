"""/v1/files with the session of somebody at the console's pages: who may, and what a foreign page cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from tenants import files
from tenants.callers import Role
from tenants.models import AuditEntry, File, Member
from tests.console.people import member, operator, session_of
from tests.gateway.house import Actor, Process
from tests.gateway.test_files_and_batches import form, in_two_parts, lying

TOKEN = "a" * 32


async def send(
    gateway: Process,
    user: User | None,
    tenant: str = "acme",
    content: bytes = b"{}\n",
    headers: dict[str, str | None] | None = None,
) -> tuple[int, Any]:
    """As the page's script does it."""
    given: dict[str, str | None] = {"X-Tenant": tenant, "X-CSRFToken": TOKEN, "Cookie": f"csrftoken={TOKEN}"}
    given |= headers or {}
    if user is not None:
        given["Cookie"] = f"{given['Cookie']}; {settings.SESSION_COOKIE_NAME}={session_of(user)}"
    sent = {name: value for name, value in given.items() if value is not None}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}/v1/files", data=form(content), headers=sent) as answer,
    ):
        found = await answer.json()
        return answer.status, found.get("error", found)


def uploaded(actor: Actor) -> list[File]:
    return list(File.objects.filter(tenant=actor.tenant))


@pytest.mark.parametrize("role", [Role.DEVELOPER, Role.OWNER])
async def test_members_send_large_files(gateway: Process, acme: Actor, role: Role) -> None:
    content = b"x" * (2 * settings.MAX_BODY_BYTES)
    status, found = await send(gateway, member(acme.tenant, role, "ada"), content=content)
    assert status == 200, found
    (file,) = uploaded(acme)
    assert (file.pk, file.num_bytes, file.filename) == (found["id"], len(content), "in.jsonl")
    assert files.content_path(file).stat().st_size == len(content)
    entry = AuditEntry.objects.get(tenant=acme.tenant, action="file.uploaded")
    assert (entry.actor_kind, entry.actor_name) == ("member", "ada")


async def test_an_operator_sends_one_for_an_account(gateway: Process, acme: Actor) -> None:
    assert (await send(gateway, operator()))[0] == 200
    assert AuditEntry.objects.get(tenant=acme.tenant, action="file.uploaded").actor_kind == "operator"
    assert (await send(gateway, operator("other"), "nobody"))[0] == 404


@pytest.mark.parametrize(
    ("who", "given", "status", "code"),
    [
        (lambda acme, other: member(other.tenant), {}, 404, None),
        (lambda acme, other: member(acme.tenant, Role.VIEWER), {}, 403, None),
        (lambda acme, other: None, {}, 401, "signed_out"),
        (lambda acme, other: member(acme.tenant), {"X-CSRFToken": "b" * 32}, 403, "csrf_failed"),
        (lambda acme, other: member(acme.tenant), {"X-CSRFToken": None}, 401, "invalid_api_key"),
        (lambda acme, other: member(acme.tenant), {"Origin": "https://evil.example"}, 403, "csrf_failed"),
        (lambda acme, other: member(acme.tenant), {"X-Tenant": None}, 400, None),
        (lambda acme, other: member(acme.tenant), {"Authorization": "Bearer nothing"}, 401, "invalid_api_key"),
    ],
)
async def test_who_may_not(
    gateway: Process,
    acme: Actor,
    stranger: Actor,
    who: Callable[[Actor, Actor], User | None],
    given: dict[str, str | None],
    status: int,
    code: str | None,
) -> None:
    found, error = await send(gateway, who(acme, stranger), headers=given)
    assert found == status, error
    assert code is None or error["code"] == code
    assert uploaded(acme) == uploaded(stranger) == []


def leaves(user: User) -> None:
    Member.objects.unscoped().filter(user=user).delete()


def is_demoted(user: User) -> None:
    Member.objects.unscoped().filter(user=user).update(role=Role.VIEWER)


def signs_out(user: User) -> None:
    Session.objects.all().delete()


@pytest.mark.parametrize(("change", "status"), [(leaves, 404), (is_demoted, 403), (signs_out, 401)])
async def test_whoever_may_no_longer_at_the_end_of_it_sends_nothing(
    gateway: Process, acme: Actor, change: Callable[[User], None], status: int
) -> None:
    user = member(acme.tenant, Role.DEVELOPER, "ada")
    cookie = f"csrftoken={TOKEN}; {settings.SESSION_COOKIE_NAME}={session_of(user)}"
    headers = {"X-Tenant": "acme", "X-CSRFToken": TOKEN, "Cookie": cookie}
    found, error = await in_two_parts(gateway, headers, lambda: change(user))
    assert found == status, error
    assert uploaded(acme) == lying(acme) == []
    assert not AuditEntry.objects.filter(tenant=acme.tenant, action="file.uploaded").exists()


async def test_more_than_a_file_may_have(gateway: Process, acme: Actor) -> None:
    user = member(acme.tenant)
    cookie = f"csrftoken={TOKEN}; {settings.SESSION_COOKIE_NAME}={session_of(user)}"
    headers = {"X-Tenant": "acme", "X-CSRFToken": TOKEN, "Cookie": cookie}
    headers["Content-Length"] = str(settings.MAX_FILE_BYTES + (1 << 20))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}/v1/files", data=b"x", headers=headers) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")
