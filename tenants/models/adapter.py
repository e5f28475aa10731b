from __future__ import annotations

from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models

from tenants.models.base_model import BaseModel
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class Adapter(TenantOwned):
    """A tenant's adapter: a name whose ``current`` version answers requests for ``<tenant>/<name>``."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="adapters")
    name = models.CharField(
        max_length=63,
        validators=[
            RegexValidator(r"\A[a-z0-9][a-z0-9._-]*\Z", "lower-case letters, digits, dots, underscores, hyphens")
        ],
    )
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="adapters")
    current = models.ForeignKey(
        "AdapterVersion", on_delete=models.PROTECT, null=True, blank=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("tenant", "name")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "name"), name="adapter_name_once_per_tenant"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class AdapterVersion(TenantOwned):
    """One content of an adapter. A trigger (``tenants/sql/guards.sql``) refuses to change it once it is ready."""

    class State(models.TextChoices):
        PENDING = "pending"
        READY = "ready"
        REJECTED = "rejected"

    tenant_path = "adapter__tenant"

    adapter = models.ForeignKey(Adapter, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField(help_text="1, 2, 3 … within the adapter")
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    digest = models.CharField(max_length=64, blank=True, help_text="hex sha256 of the content, once ready")
    report = models.JSONField(default=dict, help_text='{"message", "field"} when rejected; {"same_as"} for a duplicate')
    spec = models.JSONField(default=dict, help_text="targets, ranks and data type, as the check read them")
    num_bytes = models.PositiveBigIntegerField(default=0)
    tries = models.PositiveSmallIntegerField(default=0, help_text="how often its check was begun or queued again")
    created_at = models.DateTimeField(auto_now_add=True)
    checked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("adapter", "-number")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("adapter", "number"), name="version_number_once"),
            models.UniqueConstraint(
                fields=("adapter", "digest"), condition=models.Q(state="ready"), name="same_content_same_version"
            ),
            models.CheckConstraint(
                condition=~models.Q(state="ready") | ~models.Q(digest=""), name="ready_version_has_digest"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.adapter} v{self.number}"


class AdapterAllowance(TenantOwned):
    """This tenant may use another tenant's adapter, under the owner's name for it."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="adapter_allowances")
    adapter = models.ForeignKey(Adapter, on_delete=models.CASCADE, related_name="allowances")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "adapter"), name="adapter_allowed_once"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} may use {self.adapter}"
