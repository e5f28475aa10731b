"""A batch's file goes on its own, larger than a form may be, and the batch is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from playwright.async_api import Page, expect

from tenants import files
from tenants.callers import Role
from tenants.models import Batch, File
from tests.console.conftest import shoot
from tests.console.people import member, sign_in
from tests.gateway.batches.conftest import jsonl, line
from tests.gateway.house import Actor, House, Process

pytestmark = pytest.mark.browser


async def test_a_large_file_becomes_a_batch(
    page: Page, gateway: Process, house: House, acme: Actor, tmp_path: Path
) -> None:
    content = jsonl([line(str(number), model=house.base.name) for number in range(30_000)])
    assert len(content) > settings.MAX_BODY_BYTES
    large = tmp_path / "nightly.jsonl"
    large.write_bytes(content)
    await sign_in(page.context, gateway.url, member(acme.tenant, Role.OWNER))
    await page.goto(f"{gateway.url}/console/t/acme/batches/-/new")
    await page.get_by_label("A file of requests").set_input_files(large)
    await page.evaluate("document.getElementById('batch').dataset.most = '1000000'")
    await page.get_by_role("button", name="Make the batch").click()
    await expect(page.get_by_role("alert")).to_contain_text("a file has at most 1.0 MB. Make several batches of it.")
    assert File.objects.filter(tenant=acme.tenant).count() == 0, "it was sent in spite of that"
    await shoot(page, "batch-too-large")
    await page.evaluate(f"document.getElementById('batch').dataset.most = '{settings.MAX_FILE_BYTES}'")
    await page.get_by_role("button", name="Make the batch").click()
    await page.wait_for_url("**/console/t/acme/batches/batch_*")
    (file,) = File.objects.filter(tenant=acme.tenant)
    assert files.content_path(file).read_bytes() == content
    assert Batch.objects.get(tenant=acme.tenant).input_file_id == file.pk
    await expect(page.get_by_role("main")).to_contain_text("The batch is made.")
