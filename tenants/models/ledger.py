from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.indexes import BrinIndex
from django.db import models

from tenants.models.adapter import AdapterVersion
from tenants.models.api_key import ApiKey
from tenants.models.base_model import BaseModel
from tenants.models.member import Member
from tenants.models.price import Price
from tenants.models.request import InferenceRequest
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class LedgerEntry(TenantOwned):
    """How one request's hold ended: settled (what it used) or void (nothing). Append-only, one entry per request.

    A trigger refuses UPDATE, DELETE and TRUNCATE, whoever asks. Written by ``tenants/sql/settle.sql`` only, together
    with the account's sums. Usage belongs to the time of admission, ``admitted_at``.
    """

    class Kind(models.TextChoices):
        SETTLE = "settle"
        VOID = "void"

    class Outcome(models.TextChoices):
        COMPLETED = "completed"
        CANCELLED = "cancelled", "cancelled by the client"
        FAILED = "failed"
        ABANDONED = "abandoned", "settled by the reaper"

    # No constraints in the database: see tenants/sql/guards_requests.sql.
    request = models.OneToOneField(
        InferenceRequest, on_delete=models.PROTECT, related_name="ledger_entry", db_constraint=False
    )
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="ledger", db_index=False, db_constraint=False
    )
    key = models.ForeignKey(
        ApiKey, on_delete=models.PROTECT, related_name="ledger", db_index=False, db_constraint=False
    )
    member = models.ForeignKey(
        Member, on_delete=models.DO_NOTHING, null=True, related_name="ledger", db_index=False, db_constraint=False
    )
    base_model = models.ForeignKey(
        BaseModel, on_delete=models.PROTECT, related_name="ledger", db_index=False, db_constraint=False
    )
    adapter_version = models.ForeignKey(
        AdapterVersion, on_delete=models.PROTECT, null=True, related_name="ledger", db_index=False, db_constraint=False
    )
    price = models.ForeignKey(
        Price, on_delete=models.PROTECT, null=True, related_name="ledger", db_index=False, db_constraint=False
    )
    kind = models.CharField(max_length=6, choices=Kind.choices, default=Kind.SETTLE)
    prompt_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    cost = models.BigIntegerField(default=0, help_text="micro-units")
    outcome = models.CharField(max_length=16, choices=Outcome.choices)
    finish_reason = models.CharField(max_length=32, blank=True)
    admitted_at = models.DateTimeField()
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "ledger entries"
        indexes: ClassVar = [
            models.Index(fields=("tenant", "created_at"), name="ledger_by_tenant"),
            models.Index(fields=("key", "request"), name="ledger_by_key"),
            # What went wrong is rare, and looked for: of one tenant, and of all.
            models.Index(
                fields=("tenant", "outcome", "request"),
                condition=~models.Q(outcome="completed"),
                name="ledger_tenant_not_completed",
            ),
            models.Index(
                fields=("outcome", "request"), condition=~models.Q(outcome="completed"), name="ledger_not_completed"
            ),
            # roll-ups: what is new, and one hour across all tenants
            BrinIndex(fields=("created_at",), name="ledger_by_time", autosummarize=True),
            BrinIndex(fields=("admitted_at",), name="ledger_by_admission", autosummarize=True),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(cached_tokens__lte=models.F("prompt_tokens")), name="cached_is_part_of_prompt"
            ),
            models.CheckConstraint(
                condition=~models.Q(kind="void") | models.Q(prompt_tokens=0, completion_tokens=0, cost=0),
                name="void_costs_nothing",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}: {self.prompt_tokens} + {self.completion_tokens}"
