"""/v1/files and /v1/batches through a real gateway: openai-python, strangers, hostile uploads."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone
from openai import AsyncOpenAI, OpenAI
from yarl import URL

from gateway.batches import runner
from tenants import files
from tenants.models import ApiKey, AuditEntry, Batch, File, Member
from tests.gateway.batches.conftest import input_file, jsonl, line, new_batch
from tests.gateway.house import Actor, House, Process, wait_for


def client_of(actor: Actor, gateway: Process) -> OpenAI:
    return OpenAI(api_key=actor.secret, base_url=f"{gateway.url}/v1", max_retries=0)


def work() -> None:
    asyncio.run(runner.run(60, lambda: False))


def lines_of(house: House, count: int) -> bytes:
    return jsonl([line(str(number), model=house.base.name) for number in range(count)])


def form(content: bytes = b"{}\n", **fields: str) -> aiohttp.FormData:
    made = aiohttp.FormData()
    for name, value in {"purpose": "batch", **fields}.items():
        made.add_field(name, value)
    made.add_field("file", content, filename="in.jsonl")
    return made


async def upload(gateway: Process, actor: Actor, data: Any, **headers: str) -> tuple[int, dict[str, Any], Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}/v1/files", data=data, headers=actor.headers | headers) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


# openai-python --------------------------------------------------------------------------------------------------------


def test_openai_python_from_upload_to_answers(house: House, acme: Actor, gateway: Process) -> None:
    client = client_of(acme, gateway)
    content = lines_of(house, 5)
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(content), "in.jsonl", "batch", "processed")
    assert client.files.wait_for_processing(file.id, poll_interval=0.1).id == file.id
    assert client.files.content(file.id).read() == content
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"run": "1"}
    )
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"run": "1"})
    assert batch.expires_at == batch.created_at + 24 * 3600
    work()
    batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.errors) == ("completed", None)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (5, 5, 0)
    assert batch.usage is not None
    assert batch.usage.output_tokens == 15
    assert batch.output_file_id is not None
    answers = [json.loads(each) for each in client.files.content(batch.output_file_id).text.splitlines()]
    assert {answer["custom_id"] for answer in answers} == {"0", "1", "2", "3", "4"}
    assert [each.id for each in client.batches.list(limit=10)] == [batch.id]
    assert {each.id for each in client.files.list()} == {file.id, batch.output_file_id}
    assert [each.id for each in client.files.list(purpose="batch", order="asc")] == [file.id]
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    assert not (settings.FILES_DIR / str(acme.tenant.pk) / file.id).exists()
    actions = set(AuditEntry.objects.filter(tenant=acme.tenant).values_list("action", flat=True))
    assert actions == {"file.uploaded", "batch.created", "file.deleted"}


async def test_openai_python_async_cancel_and_errors(house: House, acme: Actor, gateway: Process) -> None:
    async with AsyncOpenAI(api_key=acme.secret, base_url=f"{gateway.url}/v1", max_retries=0) as client:
        file = await client.files.create(
            file=io.BytesIO(b"{\n"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert file.expires_at == file.created_at + 3600
        arguments: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = await client.batches.create(input_file_id=file.id, **arguments)
        with pytest.raises(openai.ConflictError, match=batch.id):
            await client.files.delete(file.id)
        await runner.run(30, lambda: False)
        failed = await client.batches.retrieve(batch.id)
        assert failed.status == "failed"
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert [(each.code, each.line) for each in failed.errors.data] == [("invalid_json_line", 1)]
        with pytest.raises(openai.ConflictError, match="failed"):
            await client.batches.cancel(batch.id)
        second = await client.batches.create(input_file_id=file.id, **arguments)
        cancelled = await client.batches.cancel(second.id)
        assert cancelled.status == "cancelling"
        assert cancelled.cancelling_at is not None
        assert (await client.batches.cancel(second.id)).cancelling_at == cancelled.cancelling_at
        found = [each.id async for each in client.batches.list(limit=1)]
        assert found == [second.id, batch.id]


def test_a_batch_is_created_once_for_its_key(house: House, acme: Actor, gateway: Process) -> None:
    client = client_of(acme, gateway)
    file = input_file(acme, lines_of(house, 1))
    again: Any = {"extra_headers": {"Idempotency-Key": "one"}}
    arguments: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **again}
    first = client.batches.create(input_file_id=file.pk, **arguments)
    assert client.batches.create(input_file_id=file.pk, **arguments) == first
    assert Batch.objects.filter(tenant=acme.tenant).count() == 1
    assert client.batches.cancel(first.id, extra_headers={"Idempotency-Key": "two"}).status == "cancelling"
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(first.id, **again)


# Who may --------------------------------------------------------------------------------------------------------------


def test_a_stranger_sees_no_file_and_no_batch(house: House, acme: Actor, stranger: Actor, gateway: Process) -> None:
    file = input_file(acme, lines_of(house, 1))
    batch = new_batch(acme, lines_of(house, 1))
    theirs = client_of(stranger, gateway)
    nothing = "file-" + "0" * 32
    for wrong in (file.pk, nothing, "x", "../../keys/peppers", "%00"):
        for ask in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                ask(wrong)
        with pytest.raises(openai.NotFoundError) as refused:
            theirs.batches.create(input_file_id=wrong, endpoint="/v1/chat/completions", completion_window="24h")
        assert refused.value.param == "input_file_id"
    for wrong in (batch.pk, "batch_" + "0" * 32):
        for ask_batch in (theirs.batches.retrieve, theirs.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask_batch(wrong)
    assert list(theirs.files.list()) == []
    assert list(theirs.batches.list()) == []
    for after in (file.pk, nothing):
        with pytest.raises(openai.BadRequestError):
            list(theirs.files.list(after=after))
    assert File.objects.filter(tenant=acme.tenant).count() == 2
    assert Batch.objects.get(tenant=acme.tenant).status == "validating"


def test_a_manage_key_reads_and_changes_nothing(house: House, acme: Actor, gateway: Process) -> None:
    file = input_file(acme, lines_of(house, 1))
    batch = new_batch(acme, lines_of(house, 1))
    key, secret = ApiKey.issue(acme.tenant, scope="manage")
    managing = client_of(Actor(acme.tenant, key, secret.reveal()), gateway)
    assert managing.files.retrieve(file.pk).id == file.pk
    assert managing.batches.retrieve(batch.pk).id == batch.pk
    for change in (
        lambda: managing.files.delete(file.pk),
        lambda: managing.batches.cancel(batch.pk),
        lambda: managing.files.create(file=b"{}", purpose="batch"),
    ):
        with pytest.raises(openai.PermissionDeniedError):
            change()


def of_member(acme: Actor, name: str, role: str) -> Actor:
    """A person's key of scope inference."""
    member = Member.objects.create(
        tenant=acme.tenant, user=get_user_model().objects.create_user(f"{name}@acme.example"), role=role
    )
    key, secret = ApiKey.issue(acme.tenant, member=member)
    return Actor(acme.tenant, key, secret.reveal())


def test_a_viewer_reads_and_changes_nothing(house: House, acme: Actor, gateway: Process) -> None:
    file = input_file(acme, lines_of(house, 1))
    batch = new_batch(acme, lines_of(house, 1))
    viewing = client_of(of_member(acme, "vera", "viewer"), gateway)
    assert viewing.files.retrieve(file.pk).id == file.pk
    assert viewing.batches.retrieve(batch.pk).id == batch.pk
    arguments: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for change in (
        lambda: viewing.files.create(file=b"{}", purpose="batch"),
        lambda: viewing.batches.create(input_file_id=file.pk, **arguments),
        lambda: viewing.files.delete(file.pk),
        lambda: viewing.batches.cancel(batch.pk),
    ):
        with pytest.raises(openai.PermissionDeniedError, match="developer"):
            change()
    assert Batch.objects.get(tenant=acme.tenant).status == "validating"


def test_developers_change_what_their_own_keys_made(house: House, acme: Actor, gateway: Process) -> None:
    dora, dave = of_member(acme, "dora", "developer"), of_member(acme, "dave", "developer")
    rotated = ApiKey.issue(acme.tenant, member=dora.key.member)
    hers = client_of(Actor(acme.tenant, rotated[0], rotated[1].reveal()), gateway)
    done = [new_batch(actor, lines_of(house, 1)) for actor in (dora, dave, acme)]
    work()
    outputs = [Batch.objects.get(tenant=acme.tenant, pk=batch.pk).output_file_id for batch in done]
    unfinished = [new_batch(actor, lines_of(house, 1)) for actor in (dora, dave, acme)]
    for batch, output, ended in zip(unfinished[1:], outputs[1:], done[1:], strict=True):
        with pytest.raises(openai.PermissionDeniedError, match="owner"):
            hers.batches.cancel(batch.pk)
        for file in (output, ended.input_file_id):
            with pytest.raises(openai.PermissionDeniedError, match="owner"):
                hers.files.delete(file)
        assert hers.files.retrieve(output).id == output
    assert hers.batches.cancel(unfinished[0].pk).status == "cancelling"
    assert hers.files.delete(outputs[0]).deleted
    assert hers.files.delete(done[0].input_file_id).deleted
    assert hers.files.delete(input_file(acme, b"{}").pk).deleted, "an upload that no batch names"
    for everybody in (client_of(of_member(acme, "olga", "owner"), gateway), client_of(acme, gateway)):
        new = new_batch(dave, lines_of(house, 1))
        assert everybody.batches.cancel(new.pk).status == "cancelling"


# What is sent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": 7}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {"a": "\0"}}, "metadata.a"),
        ({"metadata": {"a": "\ud800"}}, "metadata.a"),
        ({"metadata": {"\udfff": "a"}}, "metadata"),
        ({"input_file_id": "\ud800"}, "input_file_id"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"priority": 1}, "priority"),
    ],
)
async def test_a_wrong_batch_is_refused_by_field(
    house: House, acme: Actor, gateway: Process, change: dict[str, Any], param: str
) -> None:
    file = input_file(acme, b"{}\n")
    body = {"input_file_id": file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
    async with (
        aiohttp.ClientSession(headers=acme.headers) as session,
        session.post(f"{gateway.url}/v1/batches", json=body) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, param)


def half_uploads() -> set[Path]:
    """Of killed processes too: other tests leave some."""
    folder = settings.FILES_DIR / "incoming"
    return set(folder.iterdir()) if folder.exists() else set()


async def test_a_wrong_upload_is_refused_by_field(house: House, acme: Actor, gateway: Process) -> None:
    before = half_uploads()
    twice = form()
    twice.add_field("file", b"x", filename="b")
    many = form()
    for number in range(10):
        many.add_field(f"f{number}", "x")
    no_file = aiohttp.FormData({"purpose": "batch"})
    no_file.add_field("x", b"", filename="y")
    for data, param in (
        (form(purpose="fine-tune"), "purpose"),
        (form(purpose="x" * 2000), "purpose"),
        (form(other="1"), "other"),
        (twice, "file"),
        (many, "f0"),
        (no_file, "x"),
        (form(**{"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}), "expires_after.seconds"),
        (form(**{"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}), "expires_after.anchor"),
        (form(**{"expires_after[anchor]": "created_at", "expires_after[seconds]": "1e4"}), "expires_after.seconds"),
        (b"no form", None),
        (b"", None),
    ):
        status, body, _ = await upload(gateway, acme, data)
        assert (status, body["error"]["param"]) == (400, param), body
    broken = {"content-type": "multipart/form-data; boundary=x"}
    for data in (b"--x\r\n", b"--y\r\n\r\n", b"\0" * 1000, b"--x\r\n" + b"a" * 100_000, b"--x--\r\n"):
        status, _, _ = await upload(gateway, acme, data, **broken)
        assert status == 400
    assert not File.objects.filter(tenant=acme.tenant).exists()
    assert half_uploads() <= before


async def test_ids_that_cannot_be_are_not_found(house: House, acme: Actor, gateway: Process) -> None:
    async with aiohttp.ClientSession(headers=acme.headers) as session:
        for wrong in ("%00", "a%00b", "%ff", "%f0%9f%98%80", "x" * 5000):
            for method, path in (
                ("GET", f"/v1/files/{wrong}"),
                ("GET", f"/v1/files/{wrong}/content"),
                ("DELETE", f"/v1/files/{wrong}"),
                ("GET", f"/v1/batches/{wrong}"),
                ("POST", f"/v1/batches/{wrong}/cancel"),
            ):
                async with session.request(method, URL(gateway.url + path, encoded=True)) as answer:
                    assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found"), path
            for path in (f"/v1/files?after={wrong}", f"/v1/batches?after={wrong}"):
                async with session.get(URL(gateway.url + path, encoded=True)) as answer:
                    assert (answer.status, (await answer.json())["error"]["param"]) == (400, "after"), path


async def test_a_files_name_is_a_label(house: House, acme: Actor, gateway: Process) -> None:
    for name, shown in (("../../etc/passwd", "passwd"), ("a\\b\\c.jsonl", "c.jsonl"), ("x" * 400, "x" * 255)):
        data = aiohttp.FormData(quote_fields=False)
        data.add_field("purpose", "batch")
        data.add_field("file", b"{}\n", filename=name)
        status, body, _ = await upload(gateway, acme, data)
        assert status == 200
        assert body["filename"] == shown or name.startswith("a\\")
        assert files.content_path(files.find(acme.tenant, body["id"])).read_bytes() == b"{}\n"


async def test_an_upload_happens_once_for_its_key(house: House, acme: Actor, gateway: Process) -> None:
    key = {"Idempotency-Key": "one"}
    _, first, _ = await upload(gateway, acme, form(b"1\n"), **key)
    status, second, headers = await upload(gateway, acme, form(b"1\n"), **key)
    assert (status, second, headers["Idempotency-Replayed"]) == (200, first, "true")
    status, refused, _ = await upload(gateway, acme, form(b"2\n"), **key)
    assert (status, refused["error"]["code"]) == (409, "idempotency_key_reused")
    assert File.objects.filter(tenant=acme.tenant).count() == 1


async def test_without_a_key_nothing_is_written(house: House, acme: Actor, gateway: Process) -> None:
    nobody, before = Actor(acme.tenant, acme.key, "lpx_live_wrong"), half_uploads()
    status, body, _ = await upload(gateway, nobody, form(b"x" * 100_000))
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert half_uploads() <= before


async def in_two_parts(
    gateway: Process, headers: dict[str, str], between: Callable[[], object], content: bytes = b"{}\n"
) -> tuple[int, Any]:
    """An upload during which something happens once its first part lies on the disk; nothing of it may lie there in
    the end, refused or not.
    """
    before = half_uploads()

    async def slowly() -> AsyncIterator[bytes]:
        yield content
        await asyncio.to_thread(wait_for, lambda: half_uploads() - before)
        await sync_to_async(between)()
        yield content

    data = aiohttp.FormData({"purpose": "batch"})
    data.add_field("file", slowly(), filename="in.jsonl")
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}/v1/files", data=data, headers=headers) as answer,
    ):
        found = await answer.json()
    assert half_uploads() <= before
    return answer.status, found.get("error", found)


def lying(actor: Actor) -> list[Path]:
    return list((settings.FILES_DIR / str(actor.tenant.pk)).glob("*"))


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"revoked_at": timezone.now()}, 401, "invalid_api_key"),
        ({"expires_at": timezone.now()}, 401, "invalid_api_key"),
        ({"allowed_addresses": ["192.0.2.0/24"]}, 403, "address_not_allowed"),
        ({"scope": "manage"}, 403, None),
        ({}, 200, None),
    ],
)
@pytest.mark.parametrize("again", [{}, {"Idempotency-Key": "one"}])
async def test_a_key_has_to_be_good_at_the_end_of_its_upload(
    house: House,
    acme: Actor,
    gateway: Process,
    change: dict[str, Any],
    status: int,
    code: str | None,
    again: dict[str, str],
) -> None:
    def happens() -> None:
        ApiKey.objects.filter(tenant=acme.tenant).update(name="renamed", **change)

    found, answer = await in_two_parts(gateway, acme.headers | again, happens)
    assert found == status, answer
    assert code is None or answer["code"] == code
    registered = 1 if status == 200 else 0
    assert File.objects.filter(tenant=acme.tenant).count() == len(lying(acme)) == registered
    assert AuditEntry.objects.filter(tenant=acme.tenant).count() == registered


async def test_a_repetition_is_told_nothing_once_its_key_is_revoked(
    house: House, acme: Actor, gateway: Process
) -> None:
    again = {"Idempotency-Key": "one"}
    status, _ = await in_two_parts(gateway, acme.headers | again, lambda: None)
    assert status == 200
    revoked = {"revoked_at": timezone.now()}
    status, answer = await in_two_parts(
        gateway, acme.headers | again, lambda: ApiKey.objects.filter(tenant=acme.tenant).update(**revoked)
    )
    assert (status, answer["code"]) == (401, "invalid_api_key")
    assert len(lying(acme)) == 1


async def test_a_member_who_is_demoted_meanwhile_sends_nothing(house: House, acme: Actor, gateway: Process) -> None:
    def dave() -> tuple[Member, Actor]:
        user = get_user_model().objects.create_user("dave")
        member = Member.objects.create(tenant=acme.tenant, user=user, role=Member.Role.DEVELOPER)
        key, secret = ApiKey.issue(acme.tenant, member=member)
        return member, Actor(acme.tenant, key, secret.reveal())

    member, actor = await sync_to_async(dave)()

    def demoted() -> None:
        Member.objects.filter(pk=member.pk, tenant=acme.tenant).update(role=Member.Role.VIEWER)

    assert (await in_two_parts(gateway, actor.headers, demoted))[0] == 403
    assert lying(acme) == []


def test_what_is_too_large_is_refused_before_it_is_sent(house: House, acme: Actor, gateway: Process) -> None:
    where = urlsplit(gateway.url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        head = (
            f"POST /v1/files HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {acme.secret}\r\n"
            f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {(200 << 20) + (1 << 20)}\r\n\r\n"
        )
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(1000)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(house: House, acme: Actor, gateway: Process) -> None:
    where, before = urlsplit(gateway.url), half_uploads()
    with socket.create_connection((where.hostname, where.port)) as connection:
        head = (
            f"POST /v1/files HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {acme.secret}\r\n"
            f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 9000000\r\n\r\n"
            '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        )
        connection.sendall(head.encode() + b"y" * 3_000_000)
        (path,) = wait_for(lambda: half_uploads() - before)
        wait_for(lambda: path.stat().st_size > 1_000_000)
    wait_for(lambda: not path.exists())
    assert not File.objects.filter(tenant=acme.tenant).exists()


@pytest.mark.slow
async def test_a_large_file_goes_through_in_little_memory(
    house: House, acme: Actor, gateway: Process, tmp_path: Path
) -> None:
    def resident() -> int:
        status = Path(f"/proc/{gateway.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) // 1024

    large = tmp_path / "large"
    with large.open("wb") as file:
        for number in range(120):
            file.write(b"%d" % number * (1 << 19) + b"\n")
    before = resident()
    with large.open("rb") as file:
        data = aiohttp.FormData({"purpose": "batch"})
        data.add_field("file", file, filename="large.jsonl")
        status, body, _ = await upload(gateway, acme, data)
    assert (status, body["bytes"]) == (200, large.stat().st_size)
    async with (
        aiohttp.ClientSession(headers=acme.headers) as session,
        session.get(f"{gateway.url}/v1/files/{body['id']}/content") as answer,
    ):
        size = 0
        async for part in answer.content.iter_chunked(1 << 20):
            size += len(part)
    assert size == body["bytes"]
    assert resident() - before < 40
