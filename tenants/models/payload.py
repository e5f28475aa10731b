from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.request import InferenceRequest
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class PayloadStoring(TenantOwned):
    """That a tenant wants prompts and answers stored. Without a row nothing is."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, primary_key=True, related_name="payload_storing")
    days = models.PositiveSmallIntegerField(help_text="for so long after the request's end")
    operators_may_read = models.BooleanField(default=False)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(days__gte=1, days__lte=30), name="payloads_for_1_to_30_days")
        ]

    def __str__(self) -> str:
        return f"{self.days} days"


class Payload(TenantOwned):
    """What one request asked and what was answered. Written by :mod:`tenants.payload_log`.

    ``prompt``: ``[{"role", "content"}, …]``; ``answers``: a text for each choice. Both are cut; ``…_characters`` say
    how long they were.
    """

    request = models.OneToOneField(InferenceRequest, on_delete=models.CASCADE, primary_key=True, related_name="payload")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="payloads", db_index=False)
    prompt = models.JSONField()
    answers = models.JSONField()
    prompt_characters = models.PositiveIntegerField()
    answer_characters = models.PositiveIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=("tenant", "created_at"), name="payload_by_tenant")]

    def __str__(self) -> str:
        return str(self.pk)
