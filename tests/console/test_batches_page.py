"""Batches in the console: who sees and cancels which, what is made of a file, and what was written."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants import batches, files, payloads
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import ApiKey, AuditEntry, Batch, File, Member
from tests.console.people import client_of, member, operator
from tests.console.samples import finished_batch
from tests.gateway.house import Actor, House

pytestmark = pytest.mark.django_db

AT = "/console/t/acme/batches"
CHAT = "/v1/chat/completions"
LINE = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'


@pytest.fixture(autouse=True)
def _folder(settings: Any, tmp_path: Path) -> None:
    settings.FILES_DIR = tmp_path


@pytest.fixture
def owner(acme: Actor) -> Client:
    return client_of(member(acme.tenant))


def text(answer: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def sent(content: bytes = LINE, name: str = "nightly.jsonl") -> io.BytesIO:
    file = io.BytesIO(content)
    file.name = name
    return file


def running(actor: Actor, key: ApiKey | None = None, **values: Any) -> Batch:
    fields = {"total": 10, "completed": 3, "failed": 1, "status": "in_progress", **values}
    made: Batch = Batch.objects.create(
        tenant=actor.tenant,
        key=key or actor.key,
        endpoint=CHAT,
        input_file_id="file-gone",
        created_at=timezone.now(),
        expires_at=timezone.now() + batches.WINDOW,
        **fields,
    )
    return made


def token(client: Client) -> str:
    found = re.search(r'name="once" value="(\w+)"', client.get(f"{AT}/-/new").content.decode())
    assert found is not None
    return found[1]


def make(client: Client, **values: Any) -> Any:
    key = ApiKey.objects.unscoped().filter(tenant__slug="acme").order_by("pk").first()
    assert key is not None
    fields = {"once": token(client), "endpoint": CHAT, "key": key.pk, "known": "", **values}
    return client.post(f"{AT}/-/new", {name: value for name, value in fields.items() if value is not None})


def test_the_lists(house: House, acme: Actor, owner: Client) -> None:
    assert "There is no batch yet. Make one" in text(owner.get(AT))
    mine = running(acme)
    theirs = running(house.actor("other"), status="completed")
    shown = text(owner.get(AT))
    assert f"{mine.pk} in progress 3 1 10" in shown
    assert theirs.pk not in shown
    everything = client_of(operator())
    assert theirs.pk in text(everything.get("/console/batches"))
    for query, found in (("other", True), ("completed", True), (theirs.pk, True), ("acme", False), ("failed", False)):
        assert (f"/batches/{theirs.pk}" in everything.get("/console/batches", {"q": query}).content.decode()) is found
    assert "No batch was found" in text(owner.get(AT, {"q": "nothing\0such"}))
    assert mine.pk in text(owner.get(AT, {"q": "in progress"}))


@pytest.mark.parametrize("path", [AT, "/console/batches"])
def test_the_lists_queries_do_not_grow(path: str, house: House, acme: Actor) -> None:
    client = client_of(operator())

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(path).status_code == 200
        return len(captured)

    for _ in range(3):
        running(acme)
    few = queries()
    for _ in range(27):
        running(acme)
    assert queries() == few


def test_a_page_follows_only_while_the_batch_runs(acme: Actor, owner: Client) -> None:
    batch = running(acme)
    page = owner.get(f"{AT}/{batch.pk}")
    assert "every 2s" in page.content.decode()
    assert 'value="4" max="10"' in page.content.decode()
    assert "4 of 10 requests are done." in text(page)
    assert "gone: it was deleted" in text(page)
    Batch.objects.filter(tenant=acme.tenant).update(status="completed")
    for path in (f"{AT}/{batch.pk}", AT):
        assert "every 2s" not in owner.get(path).content.decode()


def test_what_is_wrong_with_the_input_is_shown_by_line(acme: Actor, owner: Client) -> None:
    error = {"code": "invalid_json_line", "line": 7, "message": "The line is <no> JSON.", "param": "body.model"}
    batch = running(acme, status="failed", errors=[error], total=0)
    shown = text(owner.get(f"{AT}/{batch.pk}"))
    assert "7 body.model The line is &lt;no&gt; JSON. invalid_json_line" in shown


def test_what_was_written_is_downloaded_by_its_own_account_only(house: House, acme: Actor, owner: Client) -> None:
    batch = finished_batch(house, acme)
    assert "Answers in.jsonl" in text(owner.get(f"{AT}/{batch.pk}"))
    for what in ("output", "failures", "input"):
        answer = owner.get(f"{AT}/{batch.pk}/{what}")
        assert "attachment" in answer["Content-Disposition"]
        assert answer["Content-Length"] == "3"
        assert async_to_sync(_whole)(answer) == b"{}\n"
    stranger = client_of(member(house.actor("stranger").tenant))
    assert stranger.get(f"{AT}/{batch.pk}/output").status_code == 404
    File.objects.filter(tenant=acme.tenant).update(expires_at=timezone.now())
    assert owner.get(f"{AT}/{batch.pk}/output").status_code == 404
    unfinished = running(acme)
    gone = owner.get(f"{AT}/{unfinished.pk}/output")
    assert (gone.status_code, "There is no file" in text(gone)) == (404, True)


def test_operators_download_with_the_accounts_leave_only_and_on_record(house: House, acme: Actor) -> None:
    batch, client = finished_batch(house, acme), client_of(operator())

    def looks() -> list[tuple[str, str, Any]]:
        entries = AuditEntry.objects.filter(tenant=acme.tenant, action="batch.read").order_by("pk")
        return [(entry.actor_name, entry.subject, entry.after["file"]) for entry in entries]

    for leave in (None, False):
        if leave is not None:
            payloads.turn_on(Doer("member", "ada"), acme.tenant, days=7, operators_may_read=leave)
        page = client.get(f"{AT}/{batch.pk}")
        assert "The account does not allow operators" in text(page)
        assert f"{batch.pk}/output" not in page.content.decode()
        for what in ("input", "output", "failures"):
            refused = client.get(f"{AT}/{batch.pk}/{what}")
            assert (refused.status_code, "does not allow operators to read" in text(refused)) == (403, True)
    assert looks() == []
    payloads.turn_on(Doer("member", "ada"), acme.tenant, days=7, operators_may_read=True)
    assert f"{batch.pk}/output" in client.get(f"{AT}/{batch.pk}").content.decode()
    assert async_to_sync(_whole)(client.get(f"{AT}/{batch.pk}/output")) == b"{}\n"
    assert looks() == [("root", batch.pk, batch.output_file_id)]


def test_a_viewer_gets_the_counts_and_a_developer_the_files(house: House, acme: Actor) -> None:
    batch = finished_batch(house, acme)
    viewer, developer = (client_of(member(acme.tenant, role)) for role in (Role.VIEWER, Role.DEVELOPER))
    page = viewer.get(f"{AT}/{batch.pk}")
    assert "Answered 2 of 3 requests" in text(page)
    assert "developers and owners of the account download them" in text(page)
    assert f"{batch.pk}/output" not in page.content.decode()
    for what in ("input", "output", "failures"):
        assert viewer.get(f"{AT}/{batch.pk}/{what}").status_code == 403
        assert async_to_sync(_whole)(developer.get(f"{AT}/{batch.pk}/{what}")) == b"{}\n"
    assert not AuditEntry.objects.filter(tenant=acme.tenant, action="batch.read").exists()


async def _whole(answer: Any) -> bytes:
    return b"".join([chunk async for chunk in answer.streaming_content])


def test_cancelling_asks_with_numbers(acme: Actor, owner: Client) -> None:
    batch = running(acme)
    page = f"{AT}/{batch.pk}/cancel"
    asked = text(owner.get(page))
    assert "6 of its 10 requests are not done yet" in asked
    assert "What is done (4) is delivered and stays billed." in asked
    assert owner.post(page)["Location"] == f"{AT}/{batch.pk}"
    batch.refresh_from_db()
    assert batch.status == "cancelling"
    assert AuditEntry.objects.filter(tenant=acme.tenant, action="batch.cancelled", actor_kind="member").exists()
    Batch.objects.filter(tenant=acme.tenant).update(status="completed")
    late = owner.post(page)
    assert (late.status_code, "there is nothing left to cancel" in text(late)) == (409, True)


def test_a_developer_cancels_its_own_only(acme: Actor) -> None:
    user = member(acme.tenant, Role.DEVELOPER)
    own_key, _ = ApiKey.issue(acme.tenant, member=Member.objects.get(tenant=acme.tenant, user=user))
    client, theirs, own = client_of(user), running(acme), running(acme, own_key)
    assert f"{theirs.pk}/cancel" not in client.get(f"{AT}/{theirs.pk}").content.decode()
    assert "only an owner of the account can cancel it" in text(client.get(f"{AT}/{theirs.pk}/cancel"))
    assert client.post(f"{AT}/{theirs.pk}/cancel").status_code == 403
    assert f"{own.pk}/cancel" in client.get(f"{AT}/{own.pk}").content.decode()
    assert client.post(f"{AT}/{own.pk}/cancel").status_code == 302


def test_a_batch_is_made_of_a_file_and_of_one_that_is_there(acme: Actor, owner: Client) -> None:
    answer = make(owner, file=sent(name="a\x07b.jsonl"))
    assert answer.status_code == 302, text(answer)
    batch = Batch.objects.get(tenant=acme.tenant)
    assert answer["Location"] == f"{AT}/{batch.pk}"
    file = files.find(acme.tenant, batch.input_file_id)
    assert (file.filename, files.content_path(file).read_bytes()) == ("ab.jsonl", LINE)
    assert make(owner, known=file.pk).status_code == 302
    assert Batch.objects.filter(tenant=acme.tenant, input_file_id=file.pk).count() == 2
    entries = AuditEntry.objects.filter(tenant=acme.tenant, action="batch.created")
    assert {entry.actor_kind for entry in entries} == {"member"}


def test_a_form_that_comes_twice_makes_one_batch(acme: Actor, owner: Client) -> None:
    once = token(owner)
    first, second = (make(owner, once=once, file=sent()) for _ in range(2))
    assert first["Location"] == second["Location"]
    assert Batch.objects.filter(tenant=acme.tenant).count() == 1
    assert "This form was sent before" in text(owner.get(second["Location"]))


def test_what_a_batch_cannot_be_made_of(house: House, acme: Actor, owner: Client) -> None:
    theirs = house.actor("other")
    foreign = finished_batch(house, theirs).input_file_id
    manage, _ = ApiKey.issue(acme.tenant, scope="manage")
    for values, said in (
        ({"file": None}, "one of the two"),
        ({"file": sent(b"")}, "The submitted file is empty"),
        ({"known": foreign}, "Select a valid choice"),
        ({"file": sent(), "key": theirs.key.pk}, "Select a valid choice"),
        ({"file": sent(), "key": manage.pk}, "Select a valid choice"),
        ({"file": sent(), "key": "x"}, "Select a valid choice"),
        ({"file": sent(), "endpoint": "/v1/embeddings"}, "Select a valid choice"),
    ):
        answer = make(owner, **values)
        assert (answer.status_code, said in text(answer)) == (400, True), values
    assert not Batch.objects.filter(tenant=acme.tenant).exists()
    assert not File.objects.filter(tenant=acme.tenant).exists()


def test_whose_keys_one_may_choose(acme: Actor) -> None:
    user, other = member(acme.tenant, Role.DEVELOPER), member(acme.tenant, Role.DEVELOPER)
    assert "you have none" in text(client_of(user).get(f"{AT}/-/new"))
    assert '<a href="/console/t/acme/keys/new">Issue one</a>' in client_of(user).get(f"{AT}/-/new").content.decode()
    names = {}
    for person in (user, other):
        holder = Member.objects.get(tenant=acme.tenant, user=person)
        names[person.pk] = f"of-{uuid4().hex[:6]}"
        ApiKey.issue(acme.tenant, member=holder, name=names[person.pk])
    shown = text(client_of(user).get(f"{AT}/-/new"))
    assert (names[user.pk] in shown, names[other.pk] in shown, acme.key.public_id in shown) == (True, False, False)
    owners = text(client_of(operator()).get(f"{AT}/-/new"))
    assert (acme.key.public_id in owners, names[user.pk] in owners) == (True, False)
    assert client_of(member(acme.tenant, Role.VIEWER)).get(f"{AT}/-/new").status_code == 403
