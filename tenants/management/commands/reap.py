from __future__ import annotations

from typing import Any

from tenants.counted import counted
from tenants.management.command import JsonCommand
from tenants.tasks import reap


class Command(JsonCommand):
    help = "Settle now what dead gateways left behind; Celery does the same every few seconds."
    example = "manage.py reap"

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"settled": reap()}

    def describe(self, result: dict[str, Any]) -> str:
        return f"Settled {counted(result['settled'], 'abandoned request')}."
