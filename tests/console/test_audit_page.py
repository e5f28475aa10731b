from __future__ import annotations

import pytest

from tenants import audit
from tenants.actors import Actor as Doer
from tenants.models import AuditEntry
from tests.console.people import client_of, member, operator
from tests.gateway.house import House

pytestmark = pytest.mark.django_db


def test_an_owner_sees_the_accounts_entries_and_an_operator_all(house: House) -> None:
    acme, other = house.actor("acme"), house.actor("other")
    doer = Doer("member", "ada", "203.0.113.7")
    audit.record(doer, "key.issued", "k<1>", tenant=acme.tenant, after={"name": "ci & cd"})
    audit.record(doer, "key.issued", "theirs", tenant=other.tenant)
    audit.record(Doer("operator", "root"), "plan.changed", "small", tenant=None)
    own = client_of(member(acme.tenant)).get("/console/t/acme/audit").content.decode()
    assert "k&lt;1&gt;" in own
    assert "ci &amp; cd" in own
    assert "203.0.113.7" in own
    assert "theirs" not in own
    assert "plan.changed" not in own
    everything = client_of(operator()).get("/console/audit").content.decode()
    assert "theirs" in everything
    assert "plan.changed" in everything


def test_long_lists_have_pages_and_are_searched(house: House) -> None:
    acme = house.actor("acme")
    for number in range(60):
        audit.record(Doer("member", "ada"), "key.issued", f"k{number}", tenant=acme.tenant)
    client = client_of(member(acme.tenant))
    first = client.get("/console/t/acme/audit").context["listing"]
    assert [entry.subject for entry in first.items] == [f"k{number}" for number in range(59, 9, -1)]
    second = client.get(first.more).context["listing"]
    assert [entry.subject for entry in second.items] == [f"k{number}" for number in range(9, -1, -1)]
    assert second.more == ""
    found = client.get("/console/t/acme/audit", {"q": "k7"}).context["listing"]
    assert [entry.subject for entry in found.items] == ["k7"]
    nothing = client.get("/console/t/acme/audit", {"q": "nothing\0such"})
    assert "Nothing was found" in nothing.content.decode()


def test_a_page_that_begins_nowhere_says_so(house: House) -> None:
    house.actor("acme")
    other = house.actor("other")
    audit.record(Doer("member", "eve"), "key.issued", "theirs", tenant=other.tenant)
    client = client_of(operator())
    theirs = AuditEntry.objects.filter(tenant=other.tenant).get()
    for after in (str(theirs.pk), "x", "0" * 500, "a\0b"):
        answer = client.get("/console/t/acme/audit", {"after": after})
        assert answer.status_code == 400
        assert "nothing of this id" in answer.content.decode()


def test_values_have_units(house: House) -> None:
    acme = house.actor("acme")
    doer = Doer("member", "ada")
    before = {"budget_hard": 5_000_000, "expires_at": None, "auto_promote": False}
    after = {"budget_hard": 12_340_000, "expires_at": "2026-11-21T17:00:00+00:00", "auto_promote": True}
    audit.record(doer, "tenant.limits_changed", "acme", tenant=acme.tenant, before=before, after=after)
    more = {
        "bytes": 300_000_608,
        "canary_percent": 10,
        "requests_per_minute": 1200,
        "models": ["tiny", "<b>"],
        "days": 1,
    }
    audit.record(doer, "things.changed", "acme", tenant=acme.tenant, after=more | {"ends_at": "<i>soon"})
    text = client_of(member(acme.tenant)).get("/console/t/acme/audit").content.decode()
    for shown in (
        "<dt>budget_hard</dt><dd>5.00 USD</dd>",
        "<dd>12.34 USD</dd>",
        '<dd><time datetime="2026-11-21T17:00:00+00:00" data-local="">2026-11-21 17:00:00 UTC</time></dd>',
        "<dt>expires_at</dt><dd>–</dd>",
        "<dt>auto_promote</dt><dd>yes</dd>",
        "<dd>300.0 MB</dd>",
        "<dd>10 %</dd>",
        "<dd>1\u202f200</dd>",
        "<dd>tiny, &lt;b&gt;</dd>",
        "<dd>1 day</dd>",
        "<dd>&lt;i&gt;soon</dd>",
    ):
        assert shown in text
