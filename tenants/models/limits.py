from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models


class Limits(models.Model):
    """What a tenant may use. ``null`` on a tenant means its plan's value; ``null`` on a plan means no limit.

    Read by ``tenants/sql/admit.sql`` under the same column names.
    """

    NAMES = ("requests_per_minute", "max_concurrent", "max_input_tokens", "max_output_tokens")

    requests_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="requests admitted per minute; also the largest burst",
    )
    max_concurrent = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="requests running at once"
    )
    max_input_tokens = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="prompt tokens of one request"
    )
    max_output_tokens = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="generated tokens of one request"
    )

    class Meta:
        abstract = True


class Plan(Limits):
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
            name=cls.STANDARD, defaults={"requests_per_minute": 600, "max_concurrent": 64}
        )
        return plan
