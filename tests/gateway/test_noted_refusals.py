"""What admission does not see is in the denials too, whatever refused it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from django.utils import timezone
from uuid6 import uuid7

from gateway import consumers, refusals
from gateway.consumers import CompletionConsumer
from gateway.errors import ApiError, bad_request, overloaded
from gateway.file_upload import MOST_UPLOADS
from gateway.refusals import record
from tenants.access import Access
from tenants.models import ApiKey, Denial
from tests.gateway.house import Actor, House, Process, wait_for
from tests.gateway.test_completions import CHAT, body, post
from tests.gateway.test_files_and_batches import form, upload


def _access(actor: Actor) -> Access:
    return Access(actor.key.pk, actor.tenant.pk, actor.tenant.slug, None, {})


def _recorded(actor: Actor) -> dict[tuple[int, str], int]:
    return {(row.key_id, row.code): row.count for row in Denial.objects.filter(tenant=actor.tenant)}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Code, limit and subject of what is noted in this process."""
    found: list[tuple[str, str, str]] = []

    def note(_pool: Any, _tenant: Any, _key: Any, code: str, _message: str, **more: Any) -> None:
        found.append((code, more["limit"], more["subject"]))

    monkeypatch.setattr(refusals, "note_refusal", note)
    return found


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (ApiError(404, "model_not_found", "x"), ("model_not_found", "", "")),
        (ApiError(400, "context_length_exceeded", "x"), ("context_length_exceeded", "context_length", "model")),
        (ApiError(429, "rate_limit_exceeded", "x"), ("rate_limit_exceeded", "", "")),
        (ApiError(429, "concurrency_limit_exceeded", "x"), ("concurrency_limit_exceeded", "", "")),
        (overloaded("x"), ("overloaded", "", "")),
        (bad_request("x"), None),
        (ApiError(502, "worker_lost", "x"), None),
    ],
)
def test_what_is_recorded(acme: Actor, noted: list[Any], error: ApiError, row: tuple[str, str, str] | None) -> None:
    pool: Any = None
    record(pool, _access(acme), error, uuid7())
    assert noted == ([] if row is None else [row])


async def test_a_body_without_a_place_is_recorded(
    acme: Actor, noted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    @asynccontextmanager
    async def no_place(*_: Any) -> AsyncIterator[None]:
        raise overloaded("Too many of your requests are waiting; try again shortly.")
        yield

    async def no_limits(*_: Any) -> None:
        return None

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    monkeypatch.setattr(consumers, "turn", no_place)
    monkeypatch.setattr(consumers, "limits_of", no_limits)
    consumer = CompletionConsumer()
    consumer.scope, consumer.base_send = {"state": {"services": SimpleNamespace(pool=None)}}, send
    await consumer._answer(_access(acme), b"{}")
    assert sent[0]["status"] == 503
    assert noted == [("overloaded", "", "")]


async def test_too_long_is_too_long_wherever_it_is_found_out(gateway: Process, house: House, acme: Actor) -> None:
    """By its characters, by its token ids, and by admission, which has counted them: one reason, one row."""
    chat = body(house, messages=[{"role": "user", "content": "a " * 60_000}])
    texts = [{"model": house.base.name, "prompt": prompt} for prompt in ([1] * 600, [1] * 511)]
    asked = [(CHAT, chat), ("/v1/completions", texts[0]), ("/v1/completions", texts[1] | {"max_tokens": 9})]
    for path, data in asked:
        status, answer, _ = await post(gateway, path, acme, data)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    wait_for(lambda: sum(_recorded(acme).values()) == 3)
    row = Denial.objects.get(tenant=acme.tenant)
    assert (row.code, row.limit, row.subject, row.last_model) == (
        "context_length_exceeded",
        "context_length",
        "model",
        house.base.name,
    )


async def test_keys_that_are_refused_elsewhere_are_recorded(gateway: Process, house: House, acme: Actor) -> None:
    ended, secret = ApiKey.issue(acme.tenant, scope="manage", expires_at=timezone.now() + timedelta(hours=1))
    revoked, gone = ApiKey.issue(acme.tenant, scope="manage")
    elsewhere, outside = ApiKey.issue(acme.tenant, scope="manage", allowed_addresses=["203.0.113.0/24"])
    ApiKey.objects.filter(tenant=acme.tenant, pk=ended.pk).update(expires_at=timezone.now())
    ApiKey.objects.filter(tenant=acme.tenant, pk=revoked.pk).update(revoked_at=timezone.now())
    suspended = house.actor("idle")
    type(suspended.tenant).objects.filter(pk=suspended.tenant.pk).update(state="suspended")
    asked = [
        ("GET", "/api/keys", secret.reveal(), 401),
        ("GET", "/v1/files", secret.reveal(), 401),
        ("GET", "/v1/batches", gone.reveal(), 401),
        ("POST", "/v1/files", gone.reveal(), 401),
        ("GET", "/api/usage", outside.reveal(), 403),
        ("POST", "/v1/files", outside.reveal(), 403),
        ("GET", "/v1/batches", suspended.secret, 403),
        ("POST", "/v1/files", suspended.secret, 403),
        ("GET", "/api/keys", acme.secret, 403),  # of the wrong scope: no refusal of a request for inference
    ]
    async with aiohttp.ClientSession() as session:
        for method, path, key, status in asked:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.request(method, gateway.url + path, headers=headers) as answer:
                assert answer.status == status, (path, await answer.text())
    wait_for(lambda: sum((Counter(_recorded(acme)) + Counter(_recorded(suspended))).values()) == 8)
    assert _recorded(acme) == {
        (ended.pk, "key_expired"): 2,
        (revoked.pk, "key_revoked"): 2,
        (elsewhere.pk, "address_not_allowed"): 2,
    }
    assert _recorded(suspended) == {(suspended.key.pk, "tenant_suspended"): 2}


async def test_too_many_uploads_are_recorded(gateway: Process, acme: Actor) -> None:
    where = urlsplit(gateway.url)
    head = f"POST /v1/files HTTP/1.1\r\nHost: {where.netloc}\r\nAuthorization: Bearer {acme.secret}\r\n"
    head += "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n--x\r\n"
    writers = []
    for _ in range(MOST_UPLOADS + 1):
        _, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(head.encode())
        writers.append(writer)

    wait_for(lambda: _recorded(acme) == {(acme.key.pk, "rate_limit_exceeded"): 1})
    for writer in writers:
        writer.close()


async def test_an_empty_idempotency_key_is_none(gateway: Process, acme: Actor) -> None:
    status, answer, _ = await upload(gateway, acme, form(), **{"Idempotency-Key": ""})
    assert (status, answer["error"]["param"]) == (400, "Idempotency-Key"), json.dumps(answer)
