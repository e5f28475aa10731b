"""Plans: limits that many tenants share. Operators only."""

from __future__ import annotations

from collections.abc import Mapping

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from tenants import audit, rows
from tenants.actors import Actor
from tenants.counted import counted
from tenants.errors import Conflict, Invalid, NotFound
from tenants.limits import set_limits
from tenants.models import Plan


def find(name: str, param: str | None = None) -> Plan:
    """The plan of this name; the standard one is made when it is first asked for.

    Raises :class:`~tenants.errors.NotFound`, :class:`~tenants.errors.Invalid` where ``param`` is what names it.
    """
    if name == Plan.STANDARD:
        return Plan.standard()
    plan = Plan.objects.filter(name=name).first() if "\0" not in name else None
    if plan is None:
        if param is not None:
            raise Invalid(f"There is no plan {name[:100]!r}.", param)
        raise NotFound("plan", name)
    return plan


def names() -> list[str]:
    """Of all plans, the standard one first; it need not have a row yet."""
    others = Plan.objects.exclude(name=Plan.STANDARD).order_by("name").values_list("name", flat=True)
    return [Plan.STANDARD, *others]


def create(actor: Actor, name: str, limits: Mapping[str, int | None]) -> Plan:
    """Raises :class:`~tenants.errors.Conflict` where there is one, and :class:`~tenants.errors.Invalid`."""
    plan = Plan(name=name)
    try:
        plan.clean_fields()
    except ValidationError:
        message = f"A plan's name has 1 to 63 letters, digits, hyphens and underscores, unlike {name[:100]!r}."
        raise Invalid(message, "name") from None
    with transaction.atomic():
        try:
            with transaction.atomic():
                plan.save(force_insert=True)
        except IntegrityError:
            raise Conflict(f"There is a plan {name!r} already.", "name", "name_taken") from None
        audit.record(actor, "plan.created", name, tenant=None)
        set_limits(actor, plan, limits)
    return plan


def change(actor: Actor, plan: Plan, limits: Mapping[str, int | None]) -> None:
    """Of every tenant on it that has no limits of its own, from the next request on."""
    set_limits(actor, plan, limits)


def delete(actor: Actor, plan: Plan) -> None:
    """Raises :class:`~tenants.errors.Conflict` while it has tenants or prices, :class:`~tenants.errors.NotFound`."""
    with transaction.atomic():
        rows.hold(plan, Plan.objects.select_for_update(), "plan", plan.name)
        held = {"tenant": plan.tenants.count(), "price": plan.prices.count()}
        kept = [counted(count, noun) for noun, count in held.items() if count]
        if kept:
            raise Conflict(f"Plan {plan} has {' and '.join(kept)}.", code="plan_in_use")
        audit.record(actor, "plan.deleted", plan.name, tenant=None, before=plan.own_limits())
        plan.delete()
