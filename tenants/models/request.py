from __future__ import annotations

from typing import Any, ClassVar, Self

from django.db import models
from django.db.models.functions import Now
from uuid6 import uuid7

from tenants.models.adapter import AdapterVersion
from tenants.models.api_key import ApiKey
from tenants.models.base_model import BaseModel
from tenants.models.member import Member
from tenants.models.price import Price
from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned, TenantQuerySet


class _Requests(TenantQuerySet):
    def running(self) -> Self:
        """Those that run: not settled, and their lease is not over. Where nobody renewed the lease nobody runs the
        request any more; it is settled within a minute, and holds no place at admission meanwhile.
        """
        return self.filter(state=InferenceRequest.State.RUNNING, lease_expires_at__gt=Now())


Requests = models.Manager.from_queryset(_Requests, "Requests")


class InferenceRequest(TenantOwned):
    """One admitted request: its lease, its hold (``prompt_tokens + max_tokens``, ``held_cost``), and how far it got.

    Written by ``tenants/sql/admit.sql`` and ``tenants/sql/settle.sql``, not through the ORM. What is held and at which
    price never changes after admission. ``member`` is who the key belonged to then, and stays when that member is gone.
    """

    class State(models.TextChoices):
        RUNNING = "running"
        SETTLED = "settled"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # No constraints in the database: see tenants/sql/guards_requests.sql.
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="requests", db_index=False, db_constraint=False
    )
    key = models.ForeignKey(
        ApiKey, on_delete=models.PROTECT, related_name="requests", db_index=False, db_constraint=False
    )
    member = models.ForeignKey(
        Member, on_delete=models.DO_NOTHING, null=True, related_name="requests", db_index=False, db_constraint=False
    )
    base_model = models.ForeignKey(
        BaseModel, on_delete=models.PROTECT, related_name="requests", db_index=False, db_constraint=False
    )
    adapter_version = models.ForeignKey(
        AdapterVersion,
        on_delete=models.PROTECT,
        null=True,
        related_name="requests",
        db_index=False,
        db_constraint=False,
    )
    price = models.ForeignKey(
        Price, on_delete=models.PROTECT, null=True, related_name="requests", db_index=False, db_constraint=False
    )
    state = models.CharField(max_length=8, choices=State.choices, default=State.RUNNING)
    prompt_tokens = models.PositiveIntegerField()
    max_tokens = models.PositiveIntegerField(help_text="most generated tokens, over all choices")
    held_cost = models.BigIntegerField(default=0, help_text="micro-units")
    emitted_tokens = models.PositiveIntegerField(default=0, help_text="durable high-water mark of generated tokens")
    # Not a positive one: to add its check, a migration would read the whole table while admissions wait (240 ms for
    # 3,000,000 rows in memory, instead of 1).
    cached_tokens = models.IntegerField(
        default=0, db_default=0, help_text="durable count of the prompt's tokens that came from the cache"
    )
    admitted_at = models.DateTimeField()
    lease_expires_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    first_token_ms = models.PositiveIntegerField(null=True, help_text="from admission to the first token")
    queue_ms = models.PositiveIntegerField(null=True, help_text="in the worker's queue, by the worker")
    prefill_ms = models.PositiveIntegerField(null=True, help_text="from there to the first token, by the worker")

    objects: ClassVar[Any] = Requests()  # type: ignore[assignment]  # scoped like its base's, with one method more

    class Meta:
        indexes: ClassVar = [
            # Counting leases at admission and finding expired ones. lease_expires_at is left out on purpose, so that
            # renewing a lease every second stays a heap-only update.
            models.Index(fields=("tenant",), condition=models.Q(state="running"), name="request_running"),
            models.Index(fields=("tenant", "admitted_at"), name="request_by_tenant"),
            models.Index(fields=("key", "id"), name="request_by_key"),
            # By model: of every request either its adapter's version or, where it has none, its base model.
            models.Index(
                fields=("adapter_version", "id"),
                condition=~models.Q(adapter_version=None),
                name="request_by_adapter",
            ),
            models.Index(
                fields=("base_model", "id"), condition=models.Q(adapter_version=None), name="request_by_base_alone"
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)
