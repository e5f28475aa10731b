"""The Celery application: adapter intake, the reaper. Nothing on the token path goes through here.

Its configuration is read from Django's settings on first use (names ``CELERY_*``), so importing this costs no settings.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

app = Celery("loraplex")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_process_init.connect(dispatch_uid="loraplex_forget_connections")
def forget_connections(**_: Any) -> None:
    """A forked child must not speak on its parent's sockets to PostgreSQL."""
    from django.db import connections

    for connection in connections.all(initialized_only=True):
        connection.connection = None
