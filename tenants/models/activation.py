from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.adapter import AdapterVersion
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class Activation(TenantOwned):
    """A version's trial at a worker before it may answer requests; see :mod:`tenants.activation`."""

    class State(models.TextChoices):
        WAITING = "waiting"
        PASSED = "passed"
        FAILED = "failed"
        WAIVED = "waived", "let through by an operator"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="activations")
    version = models.OneToOneField(AdapterVersion, on_delete=models.CASCADE, related_name="activation")
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    report = models.JSONField(default=dict, help_text="what was found, or what it waits for")
    tries = models.PositiveSmallIntegerField(default=0, help_text="trials that a worker began and did not finish")
    tried_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=("tried_at",), condition=models.Q(state="waiting"), name="activation_waiting"),
        ]

    def __str__(self) -> str:
        return f"{self.version}: {self.state}"
