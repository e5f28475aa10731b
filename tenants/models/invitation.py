from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils import timezone
from uuid6 import uuid7

from tenants.models.member import Member
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class Invitation(TenantOwned):
    """Somebody was asked to join a tenant. Its token is shown once and only its hash is stored; it is good for one
    acceptance, and for this address alone where the address is proved by a sign-in.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="invitations")
    email = models.CharField(max_length=150, help_text="in lower case")
    role = models.CharField(max_length=16, choices=Member.Role.choices)
    digest = models.BinaryField(max_length=32, unique=True, editable=False, help_text="sha256 of the token")
    invited_by = models.ForeignKey(Member, on_delete=models.SET_NULL, null=True, blank=True, related_name="invitations")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=("tenant", "email"),
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="invitation_open_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.email} to {self.tenant_id}"

    @property
    def state(self) -> str:
        """``open``, ``accepted``, ``revoked`` or ``expired``."""
        if self.accepted_at is not None:
            return "accepted"
        if self.revoked_at is not None:
            return "revoked"
        return "open" if self.expires_at > timezone.now() else "expired"
