from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.adapter import AdapterVersion
from tenants.models.api_key import ApiKey
from tenants.models.base_model import BaseModel
from tenants.models.request import InferenceRequest
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class LedgerEntry(TenantOwned):
    """What one request used. Append-only: a trigger refuses UPDATE and DELETE, whoever asks.

    Written by :mod:`tenants.settlement` only, in the statement that settles the request.
    """

    class Outcome(models.TextChoices):
        COMPLETED = "completed"
        CANCELLED = "cancelled", "cancelled by the client"
        FAILED = "failed"
        ABANDONED = "abandoned", "settled by the reaper"

    request = models.OneToOneField(InferenceRequest, on_delete=models.PROTECT, related_name="ledger_entry")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="ledger", db_index=False)
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="ledger", db_index=False)
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="ledger", db_index=False)
    adapter_version = models.ForeignKey(
        AdapterVersion, on_delete=models.PROTECT, null=True, related_name="ledger", db_index=False
    )
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    outcome = models.CharField(max_length=16, choices=Outcome.choices)
    finish_reason = models.CharField(max_length=32, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "ledger entries"
        indexes: ClassVar = [models.Index(fields=("tenant", "created_at"), name="ledger_by_tenant")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(cached_tokens__lte=models.F("prompt_tokens")), name="cached_is_part_of_prompt"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}: {self.prompt_tokens} + {self.completion_tokens}"
