from __future__ import annotations

from datetime import datetime

from django.db import models

from tenants import keys
from tenants.models.limits import Limits
from tenants.models.member import Member
from tenants.models.restrictions import Restrictions
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class ApiKey(TenantOwned, Limits, Restrictions):
    """An inference key. The secret itself is shown once and never stored; see :mod:`tenants.keys`."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="api_keys")
    member = models.ForeignKey(Member, on_delete=models.SET_NULL, null=True, blank=True, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True)
    public_id = models.CharField(max_length=32, unique=True, editable=False)
    digest = models.BinaryField(max_length=32, editable=False)
    pepper_version = models.PositiveSmallIntegerField(editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="to the minute")

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"lpx_live_{self.public_id}_…"

    @classmethod
    def issue(
        cls, tenant: Tenant, *, name: str = "", member: Member | None = None, expires_at: datetime | None = None
    ) -> tuple[ApiKey, keys.Secret]:
        """A new key of this tenant and its plain text, which exists nowhere else from now on."""
        generated, version = keys.generate(), keys.current_pepper()
        key = cls(
            tenant=tenant,
            member=member,
            name=name,
            public_id=generated.public_id,
            digest=keys.hash(generated.secret, version),
            pepper_version=version,
            expires_at=expires_at,
        )
        key.full_clean()
        key.save()
        return key, generated.secret
