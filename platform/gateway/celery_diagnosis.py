"""What ``doctor`` looks at in Celery: the process for short tasks, and one for each queue of what takes its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

from django.utils import timezone

from gateway.finding import Finding
from gateway.installation import QUEUES, celery_names, queue_of, queue_options
from tenants import batch_work
from tenants.models import UsageMark, WebhookAttempt

LATELY = timedelta(minutes=3)
"""What was done so lately tells that somebody does it."""

WITHOUT = {
    "adapters": "New adapters and versions wait for it, and workers are not filled after a restart.",
    "webhooks": "Webhooks wait for it.",
    "batches": "Batches wait for it.",
    "books": "Usage is not rolled up, and the books are not looked at.",
}
"""What stands still without each of the queues' processes."""


def processes(database: bool) -> Iterator[Finding]:
    """One finding for each. :param database: whether it can be asked what a process that answers no ping is doing."""
    names = celery_names(timeout=2.0)
    short = [name for name in names if queue_of(name) is None]
    if short:
        yield Finding("celery", True, ", ".join(short))
    else:
        advice = _start("") + " Nothing that a dead gateway left is settled, and the overview stands still."
        yield Finding("celery", False, "no worker answers", advice)
    for queue in QUEUES:
        answered = [name for name in names if queue_of(name) == queue]
        yield _queue(queue, answered, database)


def _queue(queue: str, answered: list[str], database: bool) -> Finding:
    check = f"celery {queue}"
    if answered:
        return Finding(check, True, ", ".join(answered))
    if database and queue in _AT_WORK and _AT_WORK[queue]():
        return Finding(check, True, "answers no ping, but was at work lately: it answers none while it works")
    options = " ".join(queue_options(queue))
    return Finding(check, False, f"no worker of the queue {queue} answers", f"{_start(options)} {WITHOUT[queue]}")


def _start(options: str) -> str:
    return f"Start `manage.py up`, or `{f'celery -A gateway worker {options}'.strip()}`."


def _delivering() -> bool:
    last = WebhookAttempt.objects.unscoped().order_by("-id").first()
    return last is not None and last.at > timezone.now() - LATELY


def _rolling_up() -> bool:
    mark = UsageMark.objects.filter(pk=1).first()
    return mark is not None and mark.covered_until > timezone.now() - LATELY


_AT_WORK: dict[str, Callable[[], bool]] = {
    "webhooks": _delivering,
    "batches": batch_work.at_work,
    "books": _rolling_up,
}
"""Queues whose one process answers no ping while it works; those of the others do."""
