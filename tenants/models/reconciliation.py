from __future__ import annotations

from typing import ClassVar

from django.db import models
from uuid6 import uuid7


class ReconciliationRun(models.Model):
    """One look at whether everything adds up, and what it found; belongs to the operators.

    ``queued`` until a background task takes it up. Kept for ninety days.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        DONE = "done"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.CharField(max_length=63, blank=True, help_text="slug of the only tenant looked at; empty: all")
    asked_by = models.CharField(max_length=250)
    state = models.CharField(max_length=8, choices=State.choices, default=State.QUEUED)
    asked_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)
    ok = models.BooleanField(null=True)
    result = models.JSONField(default=dict, help_text="totals and findings")

    class Meta:
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index(fields=("asked_at",), condition=models.Q(state="queued"), name="reconciliation_queued")
        ]

    def __str__(self) -> str:
        return f"reconciliation {self.id}: {self.state}"
