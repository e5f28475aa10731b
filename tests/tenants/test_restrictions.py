"""Which models a key or member may use: what is written, and what is nothing new."""

from __future__ import annotations

from typing import Any

import pytest

from tenants import restrictions
from tenants.actors import Actor
from tenants.errors import NotFound
from tenants.models import ApiKey, AuditEntry
from tests.tenants.conftest import World

ANN = Actor("member", "ann")


@pytest.fixture
def acme(world: World) -> Any:
    actor = world.actor("acme")
    for name in ("pirate", "sonnet"):
        world.adapter(actor.tenant, name)
    return actor


def audited(actor: Any) -> int:
    return int(AuditEntry.objects.filter(tenant=actor.tenant, action="key.restricted").count())


def test_the_order_of_names_is_nothing_new(acme: Any) -> None:
    restrictions.restrict(ANN, acme.key, ["acme/pirate", "acme/sonnet"])
    restrictions.restrict(ANN, acme.key, ["acme/sonnet", "acme/pirate"])
    assert audited(acme) == 1
    restrictions.restrict(ANN, acme.key, ["acme/sonnet"])
    restrictions.restrict(ANN, acme.key, None)
    restrictions.restrict(ANN, acme.key, None)
    assert audited(acme) == 3
    assert restrictions.names_of(acme.key) is None


def test_what_somebody_else_set_since_the_row_was_read_is_changed_too(acme: Any) -> None:
    stale = ApiKey.objects.get(tenant=acme.tenant, pk=acme.key.pk)
    restrictions.restrict(ANN, acme.key, ["acme/pirate"])
    restrictions.restrict(ANN, stale, None)
    assert ApiKey.objects.get(tenant=acme.tenant, pk=acme.key.pk).only_adapters is None
    latest = AuditEntry.objects.filter(tenant=acme.tenant, action="key.restricted").order_by("pk").last()
    assert latest is not None
    assert latest.before == {"models": ["acme/pirate"]}


def test_of_a_holder_that_is_gone_it_says_so(acme: Any) -> None:
    stale = ApiKey.objects.get(tenant=acme.tenant, pk=acme.key.pk)
    ApiKey.objects.filter(tenant=acme.tenant).delete()
    with pytest.raises(NotFound):
        restrictions.restrict(ANN, stale, ["acme/pirate"])
