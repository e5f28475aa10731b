from __future__ import annotations

from typing import ClassVar

from django.db import models
from uuid6 import uuid7

from tenants.models.adapter import Adapter, AdapterVersion
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class Release(TenantOwned):
    """What an adapter's name stood for from one moment on; the newest release is what it stands for now.

    Append-only: a trigger refuses anything else. ``previous`` is what a rollback goes back to: the last release without
    a canary before this one. A rollback copies a release and its ``previous``, so that further ones go further back.
    """

    class Kind(models.TextChoices):
        AUTOMATIC = "automatic", "the newest version, ready"
        PROMOTE = "promote"
        CANARY = "canary"
        ROLLBACK = "rollback"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="releases")
    adapter = models.ForeignKey(Adapter, on_delete=models.CASCADE, related_name="releases")
    number = models.PositiveIntegerField(help_text="1, 2, 3 … within the adapter")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    version = models.ForeignKey(AdapterVersion, on_delete=models.CASCADE, related_name="+")
    canary = models.ForeignKey(AdapterVersion, on_delete=models.CASCADE, null=True, related_name="+")
    canary_percent = models.PositiveSmallIntegerField(default=0)
    previous = models.ForeignKey("self", on_delete=models.CASCADE, null=True, related_name="+")
    made_by = models.CharField(max_length=220, help_text="the actor, as the audit log has it")
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-number",)
        constraints: ClassVar = [models.UniqueConstraint(fields=("adapter", "number"), name="release_number_once")]

    def __str__(self) -> str:
        split = f", {self.canary_percent} % v{self.canary.number}" if self.canary else ""
        return f"{self.adapter} v{self.version.number}{split}"
