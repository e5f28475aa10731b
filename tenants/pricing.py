"""Setting prices. Operators only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet
from django.utils import timezone

from tenants import audit
from tenants.actors import Actor
from tenants.errors import Invalid
from tenants.models import BaseModel, Plan, Price, Tenant

MOST = 2**31 - 1

_SHOWN = ("base_model", "plan", "input", "cached_input", "output", "valid_from")


def prices() -> QuerySet[Any]:
    """All prices that ever were, with ``in_force``: whether requests that are admitted now are charged by it."""
    valid = Price.objects.filter(valid_from__lte=timezone.now())
    newest = valid.order_by("base_model_id", "plan_id", "-valid_from", "-pk").distinct("base_model_id", "plan_id")
    in_force = ExpressionWrapper(Q(pk__in=newest.values("pk")), output_field=BooleanField())
    return Price.objects.select_related("base_model", "plan").annotate(in_force=in_force)


def prices_for(tenant: Tenant) -> dict[int, Price]:
    """What base models cost this tenant now, by the model's id; one without a price is free."""
    found: dict[int, Price] = {}
    rows = prices().filter(Q(plan=None) | Q(plan_id=tenant.plan_id), in_force=True)
    for price in rows.order_by(F("plan").asc(nulls_first=True)):  # the plan's own comes last, and counts
        found[price.base_model_id] = price
    return found


def set_price(
    actor: Actor,
    base_model: BaseModel,
    *,
    input: int,
    output: int,
    cached_input: int | None = None,
    plan: Plan | None = None,
    valid_from: datetime | None = None,
) -> Price:
    """What a base model costs from a moment on, alone and under adapters; the prices before it stay on record. Said
    again, it is the price that is there already.

    :param input: micro-units per million prompt tokens; ``cached_input`` (``None``: the same) of those read from the
        cache, ``output`` of generated ones.
    :param plan: for its tenants only, and before the general price. :param valid_from: ``None``: now.

    Raises :class:`~tenants.errors.Invalid`.
    """
    cached = input if cached_input is None else cached_input
    for name, value in (("input", input), ("cached_input", cached), ("output", output)):
        if type(value) is not int or not 0 <= value <= MOST:
            raise Invalid(f"{name} has to be a whole number between 0 and {MOST}.", name)
    if cached > input:
        raise Invalid("cached_input cannot be more than input.", "cached_input")
    now = timezone.now()
    if valid_from is not None and timezone.is_naive(valid_from):
        raise Invalid("valid_from has to be a time with a zone, such as 2030-01-01T00:00:00Z.", "valid_from")
    if valid_from is not None and valid_from < now:
        raise Invalid("valid_from lies in the past: requests admitted since then have their price.", "valid_from")
    values = {"input": input, "cached_input": cached, "output": output}
    with transaction.atomic():
        BaseModel.objects.select_for_update(no_key=True).get(pk=base_model.pk)  # of two at once the second finds it
        now = timezone.now()
        rows = Price.objects.filter(base_model=base_model, plan=plan)
        known = rows.filter(valid_from__lte=now) if valid_from is None else rows.filter(valid_from=valid_from)
        last: Price | None = known.order_by("-valid_from", "-pk").first()
        if last is not None and all(getattr(last, name) == value for name, value in values.items()):
            return last
        price: Price = Price.objects.create(base_model=base_model, plan=plan, valid_from=valid_from or now, **values)
        audit.record(actor, "price.set", base_model.name, tenant=None, after=audit.snapshot(price, _SHOWN))
    return price
