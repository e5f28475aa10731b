"""OpenAI's client at a tenant's path among the operators': its files and batches through a real gateway."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tenants.models import OperatorKey
from tests.gateway.house import Actor, House, Process

LINES = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'


def test_files_and_batches(house: House, acme: Actor, gateway: Process) -> None:
    _, secret = OperatorKey.issue("tests")
    base_url = f"{gateway.url}/api/operator/tenants/acme"
    client = OpenAI(api_key=secret.reveal(), base_url=base_url, max_retries=0)
    again: Any = {"extra_headers": {"Idempotency-Key": "one"}}
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("ünïcode.jsonl", LINES), purpose="batch", expires_after=expiry, **again)
    assert (file.bytes, file.filename) == (len(LINES), "ünïcode.jsonl")
    assert client.files.create(file=("ünïcode.jsonl", LINES), purpose="batch", expires_after=expiry, **again) == file
    assert [each.id for each in client.files.list()] == [file.id]
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"key": acme.key.public_id},
    )
    assert client.batches.cancel(batch.id).status == "cancelling"
    assert [each.id for each in client.batches.list()] == [batch.id]
    with pytest.raises(openai.PermissionDeniedError, match="does not allow operators"):
        client.files.content(file.id)
    with pytest.raises(openai.APIStatusError) as refused:
        client.files.create(file=("large.jsonl", b"x" * (5 << 20)), purpose="batch")
    assert refused.value.status_code == 413
