"""A tenant's own page."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants.callers import Role
from tenants.models import Adapter, AdapterAllowance
from tests.console.people import client_of, member, operator
from tests.console.test_tenants_page import text_of
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(house: House) -> Actor:
    return house.actor("acme", requests_per_minute=60, max_adapters=5)


def test_everybody_sees_limits_and_only_operators_change_them(house: House, acme: Actor) -> None:
    house.adapter(acme, "pirate")
    for role in Role:
        page = client_of(member(acme.tenant, role)).get("/console/t/acme/account")
        words = text_of(page)
        assert "Requests per minute 60 0 60" in words
        assert "Adapters 5 1 4" in words
        assert str(acme.tenant.pk) in words
        assert house.base.name in words
        assert "Weight" not in words
        assert "/console/tenants/" not in page.content.decode()
    operators = client_of(operator()).get("/console/t/acme/account").content.decode()
    for action in ("change", "limits", "suspend", "delete", "models", "adapters"):
        assert f"/console/tenants/acme/{action}" in operators


def test_the_live_part_alone(acme: Actor) -> None:
    client = client_of(member(acme.tenant, Role.VIEWER))
    with CaptureQueriesContext(connection) as whole:
        client.get("/console/t/acme/account")
    with CaptureQueriesContext(connection) as part:
        answer = client.get("/console/t/acme/account", headers={"HX-Request": "true", "HX-Target": "standing"})
    text = answer.content.decode()
    assert text.lstrip().startswith('<section id="standing"')
    assert "<html" not in text
    assert "Requests per minute" in text
    assert len(part) <= len(whole) - 5


def test_no_owner_no_limit_no_model(house: House, acme: Actor) -> None:
    bare = house.actor("bare")
    bare.tenant.model_allowances.all().delete()
    words = text_of(client_of(operator()).get("/console/t/bare/account"))
    assert "nobody yet: invite one" in words
    assert "This account has no limits" in words
    assert "may use no base model" in words
    assert "Adapters no limit 0" in words


def test_as_many_queries_whatever_it_has(house: House, acme: Actor) -> None:
    client = client_of(operator())
    counts = {"account": [], "adapters/-/shared": []}  # type: dict[str, list[int]]
    for more in (3, 30):
        giver = house.actor(f"giver-{more}")
        for number in range(more):
            member(acme.tenant, Role.OWNER)
            house.adapter(giver, f"a{number}")
            house.adapter(acme, f"a{more}-{number}")
        for adapter in Adapter.objects.filter(tenant=giver.tenant):
            AdapterAllowance.objects.create(tenant=acme.tenant, adapter=adapter)
        for path, found in counts.items():
            with CaptureQueriesContext(connection) as queries:
                assert client.get(f"/console/t/acme/{path}").status_code == 200
            found.append(len(queries))
    assert all(found[0] == found[1] for found in counts.values())
    assert "and 28 more" in text_of(client.get("/console/t/acme/account"))
