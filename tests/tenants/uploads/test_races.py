"""Uploads, parts and cancellations at the same moment: one outcome, nothing left over, quotas that hold."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.db import connection

from tenants import adapter_quotas, intake, upload_files, uploads
from tenants.errors import Conflict
from tenants.models import AdapterVersion, Tenant
from tests.tenants.adapter_parts import contents, tar_of
from tests.tenants.uploads.steps import ACTOR, begin, finish, send


def race(*works: Any) -> list[Any]:
    """All at the same moment, each in a thread; what each returned or raised."""
    gate, outcomes = threading.Barrier(len(works)), [None] * len(works)

    def run(index: int, work: Any) -> None:
        gate.wait()
        try:
            outcomes[index] = work()
        except Exception as error:
            outcomes[index] = error  # type: ignore[call-overload]
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("moment", ["held", "verify", "gather"])
@pytest.mark.parametrize("packed", [False, True])
def test_cancelled_while_it_is_completed(
    moment: str, packed: bool, tenant: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents(make_adapter())
    files = {"adapter.tar": tar_of(files, "w")} if packed else files
    upload = begin(tenant, files)
    send(tenant, upload, files)
    work = getattr(upload_files, moment)

    def cancel_first(*values: Any) -> Any:
        if uploads.find(tenant, upload.pk).state == "open":
            uploads.cancel(ACTOR, tenant, upload.pk)
        return work(*values)

    monkeypatch.setattr(upload_files, moment, cancel_first)
    with pytest.raises(Conflict) as refused:
        finish(tenant, upload)
    assert refused.value.code == "upload_cancelled"
    _nothing_lies_about()


def test_cancelled_while_a_part_comes_in(tenant: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = contents(make_adapter())
    upload, held = begin(tenant, files), upload_files.held

    def cancel_first(path: Path) -> Any:
        uploads.cancel(ACTOR, tenant, upload.pk)
        return held(path)

    monkeypatch.setattr(upload_files, "held", cancel_first)
    with pytest.raises(Conflict) as refused:
        send(tenant, upload, files)
    assert refused.value.code == "upload_cancelled"
    _nothing_lies_about()


def test_completed_twice_at_once_has_one_outcome(
    tenant: Any, make_adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents(make_adapter())
    upload, held = begin(tenant, files), upload_files.held
    versions: list[int] = []
    send(tenant, upload, files)

    def complete_first(path: Path) -> Any:
        monkeypatch.setattr(upload_files, "held", held)
        versions.append(finish(tenant, upload).pk)
        return held(path)

    monkeypatch.setattr(upload_files, "held", complete_first)
    assert [finish(tenant, upload).pk] == versions
    assert list(upload_files.folder().iterdir()) == []


def test_two_parts_at_once_are_one_after_the_other_or_refused(tenant: Any, make_adapter: Any) -> None:
    files = contents(make_adapter())
    upload, name = begin(tenant, files), "adapter_model.safetensors"
    data = files[name]
    outcomes = race(*(lambda: uploads.append(tenant, upload.pk, name, 0, io.BytesIO(data).read) for _ in range(6)))
    assert outcomes.count(len(data)) == 1
    assert {o.code for o in outcomes if isinstance(o, Exception)} <= {"busy", "wrong_offset"}
    send(tenant, upload, {"adapter_config.json": files["adapter_config.json"]})
    done = race(*(lambda: finish(tenant, upload).number for _ in range(4)))
    assert 1 in done
    assert {getattr(outcome, "code", outcome) for outcome in done} <= {1, "busy"}
    assert tenant.adapters.get().versions.count() == 1


def test_quotas_hold_exactly_under_a_race(tenant: Any, make_adapter: Any) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_adapters=3)
    sources = [make_adapter(f"a{n}", seed=n) for n in range(10)]
    files = contents(sources[0])
    works: list[Any] = [
        lambda n=n: (
            intake.receive(tenant=tenant, name=f"a{n}", source=sources[n]) if n % 2 else begin(tenant, files, f"u{n}")
        )
        for n in range(10)
    ]
    outcomes = race(*works)
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 3
    assert all(isinstance(o, Conflict) for o in outcomes if isinstance(o, Exception)), outcomes
    assert adapter_quotas.used(tenant).adapters == 3


def test_first_uploads_of_a_name_at_once(tenant: Any, make_adapter: Any) -> None:
    sources = [make_adapter(f"a{n}", seed=n % 4) for n in range(8)]
    outcomes = race(*(lambda s=source: intake.receive(tenant=tenant, name="new", source=s) for source in sources))
    assert all(isinstance(outcome, AdapterVersion) for outcome in outcomes), outcomes
    numbers = sorted(tenant.adapters.get(name="new").versions.values_list("number", flat=True))
    assert numbers == [1, 2, 3, 4], "each content once, whoever came first"


def _nothing_lies_about() -> None:
    left = [path for path in Path(configured.INCOMING_DIR).rglob("*") if path != upload_files.folder()]
    assert left == [], "no parts and no copies"
