from __future__ import annotations

from typing import ClassVar

from django.db import models
from uuid6 import uuid7

from tenants.models.adapter import AdapterVersion
from tenants.models.api_key import ApiKey
from tenants.models.base_model import BaseModel
from tenants.models.member import Member
from tenants.models.price import Price
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class InferenceRequest(TenantOwned):
    """One admitted request: its lease, its hold (``prompt_tokens + max_tokens``, ``held_cost``), and how far it got.

    Written by ``tenants/sql/admit.sql`` and ``tenants/sql/settle.sql``, not through the ORM. What is held and at which
    price never changes after admission. ``member`` is who the key belonged to then, and stays when that member is gone.
    """

    class State(models.TextChoices):
        RUNNING = "running"
        SETTLED = "settled"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="requests", db_index=False)
    key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="requests", db_index=False)
    member = models.ForeignKey(
        Member, on_delete=models.DO_NOTHING, null=True, related_name="requests", db_index=False, db_constraint=False
    )
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="requests", db_index=False)
    adapter_version = models.ForeignKey(
        AdapterVersion, on_delete=models.PROTECT, null=True, related_name="requests", db_index=False
    )
    price = models.ForeignKey(Price, on_delete=models.PROTECT, null=True, related_name="requests", db_index=False)
    state = models.CharField(max_length=8, choices=State.choices, default=State.RUNNING)
    prompt_tokens = models.PositiveIntegerField()
    max_tokens = models.PositiveIntegerField(help_text="most generated tokens, over all choices")
    held_cost = models.BigIntegerField(default=0, help_text="micro-units")
    emitted_tokens = models.PositiveIntegerField(default=0, help_text="durable high-water mark of generated tokens")
    admitted_at = models.DateTimeField()
    lease_expires_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar = [
            # Counting leases at admission and finding expired ones. lease_expires_at is left out on purpose, so that
            # renewing a lease every second stays a heap-only update.
            models.Index(fields=("tenant",), condition=models.Q(state="running"), name="request_running"),
            models.Index(fields=("tenant", "admitted_at"), name="request_by_tenant"),
        ]

    def __str__(self) -> str:
        return str(self.id)
