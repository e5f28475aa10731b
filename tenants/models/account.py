from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.tenant import Tenant
from tenants.scope import TenantOwned


class Account(TenantOwned):
    """What a tenant, or a member or key with limits of its own, has used and holds: the ledger's running sums.

    ``subject`` is ``tenant``, ``member:<id>`` or ``key:<id>``. Written by ``tenants/sql`` only. Everything but the two
    rate buckets can be derived again from ledger and running requests (``reconcile`` compares).

    Buckets are integers, so that refill is exact: one request or token costs 60,000,000 units (microseconds in a
    minute) and a limit of L a minute refills L units a microsecond up to L × 60,000,000.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="accounts", db_index=False)
    subject = models.CharField(max_length=40)
    requests_level = models.BigIntegerField(null=True, help_text="units left at requests_us; null: full")
    requests_us = models.BigIntegerField(default=0, help_text="microseconds since 1970")
    tokens_level = models.BigIntegerField(null=True, help_text="units left at tokens_us; null: full")
    tokens_us = models.BigIntegerField(default=0, help_text="microseconds since 1970")
    metered_from = models.DateTimeField(null=True, help_text="requests admitted before took nothing from the tokens")
    day = models.DateField(null=True)
    latest_day = models.DateField(null=True, help_text="the latest that it was ever in; later than day: a wrong clock")
    day_tokens = models.BigIntegerField(default=0, help_text="settled and held, of requests admitted on that day")
    month = models.DateField(null=True, help_text="its first day")
    month_tokens = models.BigIntegerField(default=0, help_text="settled and held, of requests admitted in that month")
    month_cost = models.BigIntegerField(default=0, help_text="the same in micro-units")
    held_tokens = models.BigIntegerField(default=0, help_text="of running requests")
    held_cost = models.BigIntegerField(default=0, help_text="of running requests, micro-units")
    settled_count = models.BigIntegerField(default=0, help_text="ledger entries since ever")
    settled_tokens = models.BigIntegerField(default=0, help_text="sum of the ledger since ever")
    settled_cost = models.BigIntegerField(default=0, help_text="sum of the ledger since ever, micro-units")

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=("tenant", "subject"), name="account_once")]

    def __str__(self) -> str:
        return f"account {self.subject} of {self.tenant_id}"
