from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.api_key import ApiKey
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class Denial(TenantOwned):
    """Requests refused for one reason within one hour (UTC): how many, and the last of them in full.

    Written in batches by :mod:`tenants.denials`; a gateway that dies loses the counts of its last second.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="denials", db_index=False)
    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, related_name="denials", db_index=False)
    hour = models.DateTimeField()
    code = models.CharField(max_length=40)
    limit = models.CharField(max_length=40, blank=True, help_text="the limit that was hit, if it was one")
    subject = models.CharField(max_length=8, blank=True, help_text="whose limit: tenant, member or key")
    count = models.BigIntegerField()
    last_at = models.DateTimeField()
    last_request_id = models.UUIDField()
    last_model = models.CharField(max_length=200)
    last_message = models.CharField(max_length=500)

    class Meta:
        indexes: ClassVar = [models.Index(fields=("hour",), name="denial_by_hour")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=("tenant", "hour", "key", "code", "limit", "subject"), name="denial_reason_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.count} × {self.code} in {self.hour:%Y-%m-%d %H}h"
