from __future__ import annotations

import secrets

from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from uuid6 import uuid7

from tenants.models.limits import AdapterQuotas, Limits, Plan


def new_namespace() -> str:
    return secrets.token_hex(16)


class Tenant(Limits, AdapterQuotas):
    """A customer: the unit of isolation, limits and billing. Never deleted once it has a ledger; suspended instead."""

    class State(models.TextChoices):
        ACTIVE = "active"
        SUSPENDED = "suspended"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.CharField(
        max_length=63,
        unique=True,
        validators=[
            RegexValidator(r"\A[a-z0-9][a-z0-9-]*\Z", "lower-case letters, digits and hyphens, starting with no hyphen")
        ],
    )
    display_name = models.CharField(max_length=200)
    state = models.CharField(max_length=16, choices=State.choices, default=State.ACTIVE)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="tenants")
    namespace = models.CharField(
        max_length=32,
        default=new_namespace,
        unique=True,
        editable=False,
        help_text="root of the tenant's prefix cache on every worker; a new one forgets what was cached",
    )
    weight = models.PositiveSmallIntegerField(
        default=1, validators=[MinValueValidator(1)], help_text="share of a busy worker, against other tenants"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("slug",)

    def __str__(self) -> str:
        return self.slug

    def effective_limits(self) -> dict[str, int | None]:
        """The limits in force: the tenant's own, else the plan's; ``None`` is unlimited."""
        own = self.own_limits()
        return {name: getattr(self.plan, name) if value is None else value for name, value in own.items()}
