from __future__ import annotations

from typing import ClassVar

from django.db import models

from tenants.models.base_model import BaseModel
from tenants.models.limits import Plan


class Price(models.Model):
    """What tokens of a base model cost from ``valid_from`` on, alone and under adapters; belongs to the operators.

    In micro-units per million tokens. A request costs ⌈(uncached · input + cached · cached_input + generated · output)
    / 1,000,000⌉ micro-units: one rounding, upwards, per request. No price: nothing is charged.

    Requests keep a reference to the price they were admitted at, so a row never changes: a trigger refuses UPDATE and
    DELETE. A new price is a new row. A plan's own price goes before the general one (``plan`` null).
    """

    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="prices")
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, null=True, blank=True, related_name="prices")
    input = models.PositiveIntegerField(help_text="micro-units per million prompt tokens")
    cached_input = models.PositiveIntegerField(help_text="the same, for prompt tokens read from the cache")
    output = models.PositiveIntegerField(help_text="micro-units per million generated tokens")
    valid_from = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("base_model", "plan", "-valid_from")
        indexes: ClassVar = [models.Index(fields=("base_model", "-valid_from"), name="price_by_model")]
        constraints: ClassVar = [
            # so that what is settled never exceeds what was held
            models.CheckConstraint(condition=models.Q(cached_input__lte=models.F("input")), name="cached_is_cheaper"),
        ]

    def __str__(self) -> str:
        return f"{self.base_model}: {self.input}/{self.cached_input}/{self.output} from {self.valid_from:%Y-%m-%d}"
