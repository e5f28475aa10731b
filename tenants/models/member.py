from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from uuid6 import uuid7

from tenants.models.limits import Limits
from tenants.models.restrictions import Restrictions
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class Member(TenantOwned, Limits, Restrictions):
    """A person's place in a tenant. Its limits hold for all its keys together."""

    class Role(models.TextChoices):
        OWNER = "owner"
        DEVELOPER = "developer"
        VIEWER = "viewer"

    public_id = models.UUIDField(unique=True, default=uuid7, editable=False, help_text="its id outside")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "user"), name="member_once_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant} ({self.role})"
