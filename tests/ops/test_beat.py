"""Periodic tasks: their clock is a process of its own, and its absence is found."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from gateway import installation
from gateway.celery import app
from gateway.diagnosis import leases
from tenants.models import ApiKey, BaseModel, InferenceRequest, Plan, Tenant


def test_the_clock_is_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LOG_DIR", tmp_path)
    monkeypatch.setattr(settings, "DATA_DIR", tmp_path)
    assert "--beat" not in installation.celery().command
    beat = installation.beat()
    beat.start()
    try:
        assert beat.process is not None
        assert beat.process.poll() is None
        assert beat.log == tmp_path / "beat.log"
    finally:
        beat.stop()


def test_every_scheduled_task_exists_and_waiting_adapters_are_among_them() -> None:
    app.loader.import_default_modules()
    scheduled = {entry["task"]: entry["schedule"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    assert scheduled.keys() <= app.tasks.keys()
    assert scheduled["tenants.tasks.check_waiting_adapters"] == 60.0


@pytest.mark.django_db
@pytest.mark.parametrize(("expired", "ok"), [(-10, True), (30, True), (90, False)])
def test_doctor_finds_what_nobody_reaps(expired: int, ok: bool) -> None:
    request(lease_expires_at=timezone.now() - timedelta(seconds=expired))
    found = leases()
    assert found.ok is ok
    assert ("celery beat running?" in found.advice) is not ok


@pytest.mark.django_db
def test_doctor_does_not_mind_a_settled_request() -> None:
    request(lease_expires_at=timezone.now() - timedelta(hours=1), state="settled")
    assert leases().ok


def request(**values: Any) -> InferenceRequest:
    tenant = Tenant.objects.create(slug="acme", display_name="Acme", plan=Plan.objects.create(name="plan-beat"))
    key = ApiKey.objects.create(tenant=tenant, public_id="p" * 12, digest=b"d" * 32, pepper_version=1)
    base = BaseModel.objects.create(
        name="tiny", fingerprint="f" * 64, directory="/models/tiny", context_length=100, config={}
    )
    common: dict[str, Any] = {"tenant": tenant, "key": key, "base_model": base, "prompt_tokens": 1, "max_tokens": 1}
    return InferenceRequest.objects.create(**common, admitted_at=timezone.now(), **values)
