"""A page asks the database as often for much as for little: with a few of everything, and with many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.pages import At, pages
from gateway.population import populate
from tenants.actors import Actor as Who
from tenants.models import ApiKey, Member
from tests.console.people import client_of, operator
from tests.console.samples import SAMPLES
from tests.console.test_every_page import here, platform
from tests.gateway.house import Actor, House

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

FEW = {"tenants": 4, "adapters": 40, "requests": 400, "days": 2}
MANY = {"tenants": 60, "adapters": 1200, "requests": 6000, "days": 2}
"""The largest tenant has about a sixth of it: of most things more than a page shows."""


@contextmanager
def population(house: House, sizes: dict[str, int]) -> Iterator[Actor]:
    """The largest tenant of so many, with a key; gone afterwards."""
    with transaction.atomic():
        tenant = populate(Who("system", "tests"), **sizes)
        key, secret = ApiKey.issue(tenant)
        yield Actor(tenant, key, secret.reveal())
        transaction.set_rollback(True)


def owner_of(actor: Actor) -> User:
    member = Member.objects.filter(tenant=actor.tenant, role="owner").order_by("pk")[0]
    found: User = get_user_model().objects.get(memberships=member)
    return found


def asked(client: Client, address: str) -> list[str]:
    """The queries of a page that was seen before; what is no page says so."""
    client.raise_request_exception = False
    client.get(address)
    with CaptureQueriesContext(connection) as queries:
        status = client.get(address).status_code
    return [query["sql"] for query in queries.captured_queries] if status == 200 else [f"{status}: {address}"]


def everything(house: House, sizes: dict[str, int]) -> dict[str, list[str]]:
    """The queries of each page, at the platform for an operator and at the largest tenant for its owner."""
    found = {}
    with population(house, sizes) as actor:
        of_operator, of_owner = client_of(operator()), client_of(owner_of(actor))
        for name, page in sorted(pages().items()):
            if "<" in page.path and name not in SAMPLES:
                continue  # test_every_page.py says so
            for at, client, address in ((At.PLATFORM, of_operator, platform), (At.TENANT, of_owner, here)):
                if at in page.at:
                    with transaction.atomic():
                        found[f"{name} {at.name}"] = asked(client, address(page, house, actor))
                        transaction.set_rollback(True)
    return found


def test_every_page_asks_as_often_for_much_as_for_little(tiny_model_dir: Path) -> None:
    house = House(tiny_model_dir)
    few, many = everything(house, FEW), everything(house, MANY)
    assert {name: queries for name, queries in many.items() if queries[0][:4].rstrip(":").isdigit()} == {}
    more = {name: (len(few[name]), len(many[name])) for name in few if len(few[name]) != len(many[name])}
    for name in more:
        print(name, *[sql[:300] for sql in many[name]], sep="\n  ")
    assert more == {}, "page: queries with a few of everything, and with many"
