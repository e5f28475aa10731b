from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.adapter import Adapter
from tenants.models.api_key import ApiKey
from tenants.models.base_model import BaseModel
from tenants.models.member import Member
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class UsageHour(TenantOwned):
    """The ledger's sums over requests admitted in one hour (UTC): what charts read.

    Nothing but a copy: ``rollup`` makes any of it again from the ledger.
    """

    hour = models.DateTimeField()
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="usage", db_index=False)
    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="usage", db_index=False)
    member = models.ForeignKey(
        Member, on_delete=models.DO_NOTHING, null=True, related_name="usage", db_index=False, db_constraint=False
    )
    base_model = models.ForeignKey(BaseModel, on_delete=models.CASCADE, related_name="usage", db_index=False)
    adapter = models.ForeignKey(Adapter, on_delete=models.CASCADE, null=True, related_name="usage", db_index=False)
    requests = models.BigIntegerField()
    not_completed = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    cost = models.BigIntegerField(help_text="micro-units")

    class Meta:
        verbose_name_plural = "usage by hour"
        indexes: ClassVar = [models.Index(fields=("tenant", "hour"), name="usage_by_tenant")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=("hour", "tenant", "key", "member", "base_model", "adapter"),
                name="usage_once",
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} at {self.hour:%Y-%m-%d %H}h"


class UsageMark(models.Model):
    """How far the roll-ups have come: ledger entries created before ``covered_until`` are in them. One row, id 1."""

    covered_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"rolled up until {self.covered_until}"
