from __future__ import annotations

from typing import ClassVar

from django.db import models
from uuid6 import uuid7

from tenants.models.api_key import ApiKey
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


def new_batch_id() -> str:
    return f"batch_{uuid7().hex}"


class Batch(TenantOwned):
    """Requests from a file, answered when there is room, under the key that created it.

    ``validating → in_progress → finalizing → completed``; or ``failed`` (the input is not valid), ``expired``, and
    ``cancelling → cancelled``. Files are named by id and may be gone: they expire by themselves.

    Whoever works on it holds it: ``runner`` until ``held_until``, renewed every few seconds. Two that believe they hold
    it do no harm: a line is finished once, by ``tenants/sql/batches.sql``.
    """

    class Status(models.TextChoices):
        VALIDATING = "validating"
        FAILED = "failed"
        IN_PROGRESS = "in_progress"
        FINALIZING = "finalizing"
        COMPLETED = "completed"
        EXPIRED = "expired"
        CANCELLING = "cancelling"
        CANCELLED = "cancelled"

    UNFINISHED: ClassVar = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING)

    id = models.CharField(primary_key=True, max_length=40, default=new_batch_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="batches", db_index=False)
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="batches", db_index=False)
    endpoint = models.CharField(max_length=64)
    completion_window = models.CharField(max_length=8, default="24h")
    input_file_id = models.CharField(max_length=40)
    output_file_id = models.CharField(max_length=40, null=True)  # noqa: DJ001 - null as OpenAI shows it
    error_file_id = models.CharField(max_length=40, null=True)  # noqa: DJ001
    output_seconds = models.PositiveIntegerField(null=True, help_text="how long its output files are kept")
    metadata = models.JSONField(default=dict)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.VALIDATING)
    errors = models.JSONField(default=list, help_text="why it failed: [{code, message, param, line}]")

    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)

    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True)
    finalizing_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    expired_at = models.DateTimeField(null=True)
    cancelling_at = models.DateTimeField(null=True)
    cancelled_at = models.DateTimeField(null=True)

    runner = models.CharField(max_length=32, blank=True)
    held_until = models.DateTimeField(null=True)
    resume_at = models.DateTimeField(null=True, help_text="not before: its tenant's limits leave no room until then")
    worked_at = models.DateTimeField(null=True, help_text="when it was last taken up")

    class Meta:
        verbose_name_plural = "batches"
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index(fields=("tenant", "-id"), name="batch_by_tenant"),
            models.Index(
                fields=("tenant", "worked_at"),
                condition=models.Q(status__in=("validating", "in_progress", "finalizing", "cancelling")),
                name="batch_unfinished",
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)


class BatchResult(TenantOwned):
    """A line of a batch that is finished: how it will stand in the output or the error file. Gone once that is written.

    Written by ``tenants/sql/batches.sql`` only, in the transaction that settles its request.
    """

    tenant_path = "batch__tenant"

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="results", db_index=False)
    line = models.PositiveIntegerField(help_text="from 1, as in the input file")
    answered = models.BooleanField(help_text="for the output file; else for the error file")
    request_id = models.UUIDField(null=True, help_text="the request that was charged")
    body = models.BinaryField(help_text="one line of JSON, without its end")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=("batch", "line"), name="batch_line_once")]

    def __str__(self) -> str:
        return f"{self.batch_id} line {self.line}"
