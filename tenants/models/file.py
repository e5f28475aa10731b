from __future__ import annotations

from typing import ClassVar

from django.db import models
from uuid6 import uuid7

from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


def new_file_id() -> str:
    return f"file-{uuid7().hex}"


class File(TenantOwned):
    """A file of a tenant's, as OpenAI has them: what a batch reads, or what it wrote. Never changed, only deleted.

    Its content lies under :func:`tenants.files.content_path`; the row is there if and only if the content is complete.
    """

    class Purpose(models.TextChoices):
        BATCH = "batch", "uploaded as a batch's input"
        BATCH_OUTPUT = "batch_output", "written by a batch"

    id = models.CharField(primary_key=True, max_length=40, default=new_file_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="files", db_index=False)
    filename = models.CharField(max_length=255, help_text="what the client called it; never part of a path")
    purpose = models.CharField(max_length=16, choices=Purpose.choices)
    num_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ("-id",)
        indexes: ClassVar = [models.Index(fields=("tenant", "-id"), name="file_by_tenant")]

    def __str__(self) -> str:
        return str(self.id)
