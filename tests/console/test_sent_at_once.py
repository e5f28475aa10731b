"""Operators' forms that arrive several times at once, by a double click or a script: what they make, they make once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections

from fleet.models import Worker
from tenants.models import AuditEntry, Price, ReconciliationRun
from tests.console.people import client_of, operator
from tests.gateway.house import House

pytestmark = pytest.mark.django_db(transaction=True)

TIMES = 5


def at_once(user: User, path: str, bodies: list[dict[str, Any]]) -> list[int]:
    """The statuses of these posts, sent side by side."""
    clients = [client_of(user) for _ in bodies]

    def send(client: Any, body: dict[str, Any]) -> int:
        try:
            return int(client.post(path, body).status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(send, clients, bodies))


def test_a_price_is_set_once(house: House) -> None:
    user, path = operator(), "/console/settings/prices/new"
    body = {"model": house.base.name, "input": "1", "output": "2"}
    assert at_once(user, path, [body] * TIMES) == [302] * TIMES
    rows = Price.objects.filter(base_model=house.base)
    assert rows.count() == 1
    assert AuditEntry.objects.unscoped().filter(action="price.set").count() == 1
    assert at_once(user, path, [body | {"input": "3"}, body | {"input": "3"}]) == [302, 302]
    assert at_once(user, path, [body]) == [302]
    assert [price.input for price in rows.order_by("pk")] == [1_000_000, 3_000_000, 1_000_000]


def test_the_books_are_looked_at_once_until_that_is_done(house: House) -> None:
    user, path = operator(), "/console/usage/reconciliation"
    assert at_once(user, path, [{}] * TIMES) == [302] * TIMES
    assert ReconciliationRun.objects.count() == 1
    assert AuditEntry.objects.unscoped().filter(action="reconciliation.asked").count() == 1
    ReconciliationRun.objects.update(state=ReconciliationRun.State.DONE)
    assert at_once(user, path, [{}]) == [302]
    assert ReconciliationRun.objects.count() == 2


def test_of_several_workers_of_one_name_one_is_registered(house: House) -> None:
    same = {"name": "w1", "model": house.base.name, "state": "active"}
    bodies = [same | {"url": f"http://127.0.0.1:{number + 1}"} for number in range(TIMES)]
    answers = at_once(operator(), "/console/workers/register", bodies)
    assert answers.count(302) == 1
    assert set(answers) <= {302, 400, 409}
    assert Worker.objects.get(name="w1").url == bodies[answers.index(302)]["url"]
    assert list(AuditEntry.objects.unscoped().filter(subject="w1").values_list("action", flat=True)) == [
        "worker.registered"
    ]
