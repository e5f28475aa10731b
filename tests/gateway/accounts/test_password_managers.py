"""Pages where a password is chosen say whose it is, for whatever remembers passwords."""

from __future__ import annotations

import pytest
from django.test import Client

from tenants import invitations
from tenants.actors import Actor
from tenants.callers import Role
from tenants.links import password_link
from tenants.models import Tenant
from tests.gateway.accounts.conftest import make_person

FIELD = '<input type="text" name="username" value="{}" autocomplete="username" readonly hidden>'


def test_an_invitation_names_the_address(acme: Tenant) -> None:
    token = invitations.invite(Actor("command", "tests"), acme, "ada@example.org", Role.DEVELOPER)[1]
    page = Client().get(f"/accounts/invitations/{token.reveal()}", follow=True).content.decode()
    assert FIELD.format("ada@example.org") in page


@pytest.mark.usefixtures("db")
def test_a_page_that_sets_a_password_names_the_account() -> None:
    ada = make_person("ada")
    link = password_link(ada.user).reveal()
    page = Client().get(link[link.index("/accounts/") :], follow=True).content.decode()
    assert FIELD.format("ada") in page
    assert FIELD.format("ada") in ada.sign_in().get("/accounts/password").content.decode()
