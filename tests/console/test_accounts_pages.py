"""Accepting an invitation, signing out and in again, in a real browser under the strict content policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tenants import invitations
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import Member
from tests.gateway.house import Actor, Process

pytestmark = [pytest.mark.slow, pytest.mark.browser]

PASSWORD = "a quiet green lamp"


async def test_somebody_invited_comes_in_and_comes_back(
    chromium: Browser, gateway: Process, acme: Actor, tmp_path: Path
) -> None:
    token = invitations.invite(Doer("command", "tests"), acme.tenant, "ada@example.org", Role.OWNER)[1].reveal()
    page = await chromium.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("response", lambda answer: problems.append(answer.url) if answer.status >= 400 else None)
    await page.goto(f"{gateway.url}/accounts/invitations/{token}")
    assert token not in page.url
    await page.get_by_label("New password").fill(PASSWORD)
    await page.get_by_label("The same again").fill(PASSWORD)
    await page.screenshot(path=tmp_path / "invitation.png")
    await page.get_by_role("button", name="Accept with a password").click()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await page.get_by_role("link", name="ada@example.org").click()
    await expect(page.get_by_role("cell", name="owner")).to_be_visible()
    assert Member.objects.get(tenant=acme.tenant).user.username == "ada@example.org"
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_label("E-mail address or user name").fill("ADA@example.org")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.screenshot(path=tmp_path / "sign-in.png")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("link", name="ada@example.org")).to_be_visible()
    found = await page.evaluate("fetch('/api/members').then(answer => answer.json())")
    assert [member["role"] for member in found["data"]] == ["owner"]
    await page.screenshot(path=tmp_path / "account.png")
    assert problems == []
