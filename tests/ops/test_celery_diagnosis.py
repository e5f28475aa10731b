"""What doctor finds of Celery's processes, with a real one running for one queue."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.utils import timezone

from gateway import installation
from gateway.celery_diagnosis import processes
from gateway.finding import Finding
from tenants.models import UsageMark


def found(database: bool = True) -> dict[str, Finding]:
    return {finding.check: finding for finding in processes(database)}


@pytest.mark.django_db
def test_without_any_each_is_named_and_how_it_is_started() -> None:
    nothing = found()
    assert nothing.keys() == {"celery", *(f"celery {queue}" for queue in installation.QUEUES)}
    assert not any(finding.ok for finding in nothing.values())
    for queue in installation.QUEUES:
        command = f"`celery -A gateway worker {' '.join(installation.queue_options(queue))}`"
        assert command in nothing[f"celery {queue}"].advice
        assert command.strip("`") in (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


@pytest.mark.django_db
def test_who_worked_lately_is_not_missed() -> None:
    UsageMark.objects.update_or_create(pk=1, defaults={"covered_until": timezone.now() - timedelta(seconds=70)})
    assert found()["celery books"].ok
    assert not found(database=False)["celery books"].ok
    UsageMark.objects.update(covered_until=timezone.now() - timedelta(minutes=5))
    assert not found()["celery books"].ok


@pytest.mark.slow
def test_one_that_runs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "LOG_DIR", tmp_path)
    books = installation.queue("books")
    books.start()
    try:
        seen = found(database=False)
        assert seen["celery books"].ok
        assert seen["celery books"].found.startswith("books@")
        assert not seen["celery"].ok, "it does nothing but the books"
        assert not seen["celery webhooks"].ok
        assert installation.celery_answers() == []
    finally:
        books.stop()
