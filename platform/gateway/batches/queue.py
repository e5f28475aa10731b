"""The Celery queue of batches, and how it hears at once of what a periodic message would find seconds later."""

from __future__ import annotations

import logging
import threading

from django.db import transaction
from kombu.exceptions import OperationalError

from gateway.celery import app

logger = logging.getLogger(__name__)

QUEUE = "batches"
EVERY_SECONDS = 5.0


def wake() -> None:
    """Once this transaction is committed, tell a process for batches; not waited for. Without a broker the batch waits
    for the next periodic message.
    """
    transaction.on_commit(lambda: threading.Thread(target=_send, daemon=True).start())


def _send() -> None:
    try:
        app.send_task("gateway.tasks.run_batches", queue=QUEUE, expires=2 * EVERY_SECONDS, retry=False)
    except (OperationalError, OSError) as error:
        logger.warning("batches wait for the broker: %s", type(error).__name__)
