from __future__ import annotations

from typing import ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

MOST = 2**62
"""Quotas and budgets stay below this, so that sums of them fit into 64 bits."""


def _limit(explanation: str) -> models.PositiveIntegerField[int | None, int | None]:
    return models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)], help_text=explanation)


def _quota(explanation: str, least: int = 1) -> models.PositiveBigIntegerField[int | None, int | None]:
    return models.PositiveBigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(least), MaxValueValidator(MOST)],
        help_text=explanation,
    )


class Limits(models.Model):
    """What a tenant, a member or a key may use; each holds by itself, so the tightest decides.

    ``null`` on a tenant means its plan's value; on a plan, a member or a key it means no limit. Days and months are
    UTC's; a request belongs to those in which it was admitted. Money is in micro-units (a millionth of the currency).

    Read by ``tenants/sql/standing.sql`` under the same column names.
    """

    NAMES: ClassVar = (
        "requests_per_minute",
        "tokens_per_minute",
        "max_concurrent",
        "tokens_per_day",
        "tokens_per_month",
        "budget_soft",
        "budget_hard",
        "max_input_tokens",
        "max_output_tokens",
    )

    requests_per_minute = _limit("requests admitted per minute; also the largest burst")
    tokens_per_minute = _limit("tokens per minute, prompt and output; also the largest burst")
    max_concurrent = _limit("requests running at once")
    tokens_per_day = _quota("tokens per day (UTC), prompt and output")
    tokens_per_month = _quota("tokens per month (UTC), prompt and output")
    budget_soft = _quota("micro-units per month (UTC) from which on a warning is given", least=0)
    budget_hard = _quota("micro-units per month (UTC) beyond which requests are refused", least=0)
    max_input_tokens = _limit("prompt tokens of one request")
    max_output_tokens = _limit("generated tokens of one request, over all its choices")

    class Meta:
        abstract = True

    def own_limits(self) -> dict[str, int | None]:
        """The limits as they stand on this very row."""
        return {name: getattr(self, name) for name in Limits.NAMES}


class AdapterQuotas(models.Model):
    """How many adapters a tenant may keep, and how large. ``null`` on a tenant means its plan's value, on a plan no
    limit. Counted under a lock of the tenant's row by ``tenants/adapter_quotas.py``; admission knows nothing of them.
    """

    ADAPTER_QUOTAS: ClassVar = ("max_adapters", "max_adapter_versions", "max_adapter_bytes")

    max_adapters = _quota("adapters that are not deleted", least=0)
    max_adapter_versions = _quota("versions of all adapters, rejected ones included, deleted ones not", least=0)
    max_adapter_bytes = _quota("bytes of all versions' files and of open uploads", least=0)

    class Meta:
        abstract = True


class Plan(Limits, AdapterQuotas):
    """Limits that many tenants share."""

    STANDARD = "standard"
    """The plan of tenants for whom nobody chose one."""

    name = models.SlugField(max_length=63, unique=True)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def standard(cls) -> Plan:
        """The default plan, made on first use so that it also exists in a freshly emptied database."""
        plan, _ = cls.objects.get_or_create(
            name=cls.STANDARD,
            defaults={
                "requests_per_minute": 600,
                "max_concurrent": 64,
                "max_adapters": 100,
                "max_adapter_versions": 1000,
                "max_adapter_bytes": 20 << 30,
            },
        )
        return plan
