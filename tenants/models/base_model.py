from __future__ import annotations

from typing import ClassVar

from django.core.validators import RegexValidator
from django.db import models

from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class BaseModel(models.Model):
    """Base weights that workers serve; belongs to the operators. ``name`` is what tenants call."""

    class State(models.TextChoices):
        ACTIVE = "active"
        RETIRED = "retired"

    name = models.CharField(
        max_length=100,
        unique=True,
        validators=[RegexValidator(r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", "letters, digits, dots, underscores, hyphens")],
    )
    fingerprint = models.CharField(max_length=64, help_text="hex sha256 over the model store's directory")
    directory = models.CharField(max_length=1000, help_text="model store directory on this machine")
    context_length = models.PositiveIntegerField(help_text="most tokens of prompt and output together")
    config = models.JSONField(default=dict, help_text="the model's config.json")
    state = models.CharField(max_length=16, choices=State.choices, default=State.ACTIVE)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class ModelAllowance(TenantOwned):
    """This tenant may use this base model, alone and under its adapters."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="model_allowances")
    base_model = models.ForeignKey(BaseModel, on_delete=models.CASCADE, related_name="allowances")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=("tenant", "base_model"), name="model_allowed_once"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} may use {self.base_model}"
