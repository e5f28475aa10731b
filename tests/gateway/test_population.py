"""``manage.py populate``: what it makes adds up, and it is made in an empty database only."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tenants.models import Adapter, AuditEntry, Denial, InferenceRequest, LedgerEntry, Release, Tenant, UsageHour
from tests.gateway.house import House


def populated(**sizes: int) -> Any:
    out = io.StringIO()
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    call_command("populate", *words, "--yes", "--json", stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


@pytest.mark.django_db(transaction=True)
def test_what_it_makes_adds_up() -> None:
    found = populated(tenants=12, adapters=40, requests=3000, days=3)
    assert Tenant.objects.count() == 12
    assert Adapter.with_deleted.unscoped().count() == 40
    assert LedgerEntry.objects.unscoped().count() == InferenceRequest.objects.unscoped().count() == 3000
    assert sum(UsageHour.objects.unscoped().values_list("requests", flat=True)) == 3000
    assert Denial.objects.unscoped().exists()
    out = io.StringIO()
    call_command("reconcile", "--json", stdout=out)
    assert json.loads(out.getvalue())["ok"] is True
    sizes = [
        LedgerEntry.objects.filter(tenant=tenant).count() for tenant in Tenant.objects.order_by("created_at", "id")
    ]
    assert sizes[0] == max(sizes) == found["its_requests"]
    assert Tenant.objects.order_by("created_at", "id")[0].slug == found["largest"]
    for adapter in Adapter.objects.unscoped().select_related("current"):
        assert adapter.current.state == "ready"
        newest = Release.objects.unscoped().filter(adapter=adapter).order_by("-number")[0]
        assert newest.version_id == adapter.current_id
    assert AuditEntry.objects.unscoped().filter(action="database.populated").count() == 1


@pytest.mark.django_db
def test_a_database_with_tenants_is_refused(tiny_model_dir: Any) -> None:
    House(tiny_model_dir).actor("acme")
    with pytest.raises(CommandError, match="has tenants already"):
        populated(tenants=2, adapters=2, requests=10)
    assert Tenant.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("sizes", "words"),
    [({"tenants": 0}, "tenants has to be between 1 and"), ({"requests": -1}, "requests has to be between 0 and")],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        populated(**sizes)
    assert not Tenant.objects.exists()


@pytest.mark.django_db
def test_it_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with pytest.raises(CommandError, match="Nothing was changed"):
        call_command("populate", "--tenants", "2")
    monkeypatch.undo()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(CommandError, match="say --yes"):
        call_command("populate", "--tenants", "2")
    assert not Tenant.objects.exists()
