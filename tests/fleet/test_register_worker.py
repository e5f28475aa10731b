"""A worker is registered under the model whose weights it serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from fleet import registry
from fleet.models import Worker
from gateway.diagnosis import workers
from tenants.actors import Actor
from tenants.errors import Conflict
from tenants.models import AuditEntry, BaseModel
from tests.gateway.answering import answering

ANN = Actor("operator", "ann")


@pytest.fixture
def base(db: None) -> BaseModel:
    return BaseModel.objects.create(name="m", fingerprint="f" * 64, directory=str(Path("/m")), context_length=9)


def register(**options: str) -> dict[str, object]:
    out = StringIO()
    call_command(
        "register_worker",
        **({"name": "w", "url": "http://127.0.0.1:1/", "model": "m", "json": True} | options),
        stdout=out,
    )
    return json.loads(out.getvalue())


@pytest.fixture
def other_worker() -> Iterator[str]:
    """The address of one that serves other weights than the model's."""
    with answering("e" * 64) as url:
        yield url


def test_other_weights_are_refused(base: BaseModel, other_worker: str) -> None:
    with pytest.raises(CommandError, match=r"--model: .*e{64}, but m is registered with f{64}"):
        register(url=other_worker)
    assert not Worker.objects.exists()
    BaseModel.objects.update(fingerprint="e" * 64)
    assert register(url=other_worker)["problem"] is None


def test_one_that_does_not_answer_is_registered_with_a_warning(base: BaseModel) -> None:
    out, warning = StringIO(), StringIO()
    call_command("register_worker", name="w", url="http://127.0.0.1:1", model="m", stdout=out, stderr=warning)
    assert "registered" in out.getvalue()
    assert (
        "http://127.0.0.1:1 does not serve now, and gets no requests until it does: The worker cannot be reached"
        in warning.getvalue()
    )


def test_registers_once_and_updates(base: BaseModel) -> None:
    assert register()["created"] is True
    again = register(url="http://127.0.0.1:2", state="draining")
    assert (again["created"], again["url"], again["state"]) == (False, "http://127.0.0.1:2", "draining")
    assert Worker.objects.get().url == "http://127.0.0.1:2"


@pytest.mark.parametrize(
    "url", ["h:1", "ftp://h", "http://", "http://u:p@h", "http://h/path", "http://h?q", "http://h:99999"]
)
def test_refuses_addresses_by_name(base: BaseModel, url: str) -> None:
    with pytest.raises(CommandError, match="--url"):
        register(url=url)
    assert not Worker.objects.exists()


def test_refuses_an_unknown_model(base: BaseModel) -> None:
    with pytest.raises(CommandError, match="--model"):
        register(model="x")


def test_one_that_does_not_answer_is_removed_without_draining(base: BaseModel, other_worker: str) -> None:
    register()
    call_command("remove_worker", "w", stdout=StringIO())
    assert not Worker.objects.exists()
    BaseModel.objects.update(fingerprint="e" * 64)
    register(url=other_worker)
    with pytest.raises(CommandError, match="drain it first"):
        call_command("remove_worker", "w", stdout=StringIO())


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("local", r"^Start `manage.py up` again; .*worker\.log"),
        ("w1", r"127\.0\.0\.1:1 is.*`manage.py remove_worker w1`"),
    ],
)
def test_doctor_says_what_to_do_about_a_worker_that_is_away(name: str, advice: str, base: BaseModel) -> None:
    register(name=name)
    found = next(finding for finding in workers() if finding.check == f"worker {name}")
    assert not found.ok
    assert re.search(advice, found.advice)


@pytest.mark.parametrize(("state", "words"), [("draining", "it drains"), ("disabled", "it is disabled")])
def test_doctor_names_a_worker_that_is_given_nothing_where_no_other_serves(
    state: str, words: str, base: BaseModel, other_worker: str
) -> None:
    BaseModel.objects.update(fingerprint="e" * 64)
    register(name="local", url=other_worker, state=state)
    [found] = workers()
    assert (found.ok, words in found.found) == (False, True)
    assert "`manage.py drain_worker local --undo`" in found.advice
    register(name="w2", url=other_worker)
    assert [finding.ok for finding in workers()] == [True, True]
    call_command("drain_worker", "w2", stdout=StringIO())
    assert [finding.ok for finding in workers()] == [False, False]
    BaseModel.objects.update(state="retired")
    assert [finding.ok for finding in workers()] == [True, True]


def test_only_what_is_given_is_changed(base: BaseModel) -> None:
    register()
    seen = Worker.objects.get()
    Worker.objects.update(state="draining")
    changed = registry.change(ANN, seen, url="http://127.0.0.1:2/")
    assert (changed.created, changed.problem is not None) == (False, True), "it does not answer"
    assert (Worker.objects.get().url, Worker.objects.get().state) == ("http://127.0.0.1:2", "draining")
    entry = AuditEntry.objects.unscoped().get(action="worker.changed")
    assert (entry.before, entry.after) == ({"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"})
    registry.change(ANN, seen)
    assert AuditEntry.objects.unscoped().filter(action="worker.changed").count() == 1


def test_an_answer_of_another_worker_counts_for_nothing(base: BaseModel) -> None:
    """Which weights it serves was asked at an address that is not its address any more."""
    register()
    seen = Worker.objects.get()
    other = BaseModel.objects.create(name="n", fingerprint="e" * 64, directory=str(Path("/n")), context_length=9)
    Worker.objects.update(url="http://127.0.0.1:3")
    with pytest.raises(Conflict, match="Somebody else changed the worker"):
        registry.change(ANN, seen, base_model=other)
    assert Worker.objects.get().base_model == base
