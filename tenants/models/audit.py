from __future__ import annotations

from typing import ClassVar

from django.db import models
from uuid6 import uuid7

from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class AuditEntry(TenantOwned):
    """Who changed what, from what to what, from where. Append-only: a trigger refuses anything else.

    Written by :func:`tenants.audit.record`. ``tenant`` is whose object it is; ``null``: the platform's own. What was
    done to a tenant stays when the tenant itself is deleted.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.DO_NOTHING, null=True, related_name="audit", db_index=False, db_constraint=False
    )
    at = models.DateTimeField(auto_now_add=True)
    actor_kind = models.CharField(max_length=16)
    actor_name = models.CharField(max_length=200)
    address = models.GenericIPAddressField(null=True)
    action = models.CharField(max_length=64, help_text="<noun>.<verb in the past tense>: key.issued, member.removed")
    subject = models.CharField(max_length=200, help_text="the object's name as its own API says it")
    before = models.JSONField(default=dict, help_text="what changed, as it was; empty for something new")
    after = models.JSONField(default=dict, help_text="what changed, as it is now; empty for something gone")

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index(fields=("tenant", "-id"), name="audit_by_tenant"),
            models.Index(fields=("tenant", "subject", "-id"), name="audit_by_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor_kind} {self.actor_name}: {self.action} {self.subject}"
