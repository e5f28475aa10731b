from __future__ import annotations

from typing import ClassVar

from django.db import models
from uuid6 import uuid7

from tenants.models.adapter import AdapterVersion
from tenants.models.base_model import BaseModel
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class AdapterUpload(TenantOwned):
    """An adapter on its way in, part by part. How far each file has come is the length of the file on disk."""

    class State(models.TextChoices):
        OPEN = "open"
        COMPLETED = "completed"
        CANCELLED = "cancelled"
        EXPIRED = "expired"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="adapter_uploads")
    name = models.CharField(max_length=63, help_text="the adapter's name")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="+")
    files = models.JSONField(help_text='what was declared: [{"name", "size", "sha256"}]')
    num_bytes = models.PositiveBigIntegerField(help_text="of all files together, as declared")
    state = models.CharField(max_length=16, choices=State.choices, default=State.OPEN)
    version = models.ForeignKey(AdapterVersion, on_delete=models.PROTECT, null=True, related_name="uploads")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index(fields=("tenant",), condition=models.Q(state="open"), name="upload_open"),
        ]

    def __str__(self) -> str:
        return str(self.id)
