"""Setting limits: of tenants, members, keys and plans. They hold from the next request on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from tenants import adapter_quotas, audit, rows
from tenants.actors import Actor
from tenants.errors import Invalid
from tenants.models import ApiKey, Limits, Member, Plan, Tenant

Holder = Tenant | Member | ApiKey | Plan


def names_for(kind: type[Holder]) -> tuple[str, ...]:
    """The limits that such a holder may have: quotas on adapters are tenants' and plans' only."""
    return (*Limits.NAMES, *getattr(kind, "ADAPTER_QUOTAS", ()))


_NOUNS: dict[type[Holder], str] = {Tenant: "tenant", Member: "member", ApiKey: "key", Plan: "plan"}


def set_limits(actor: Actor, holder: Holder, changes: Mapping[str, int | None]) -> None:
    """Set some limits of one holder; ``None`` takes one back. What does not change is not recorded.

    :param changes: by the names of :func:`names_for` the holder's kind.

    Raises :class:`~tenants.errors.Invalid` for a name or value that cannot be, and for a soft budget above the hard.
    """
    check_values(holder, changes)
    with transaction.atomic():
        # read again under a lock: a budget that somebody else is just setting counts
        locked: Any = type(holder)._base_manager.select_for_update(no_key=True, of=("self",))
        rows.hold(holder, locked, str(type(holder)._meta.verbose_name), str(holder))
        changes = {name: value for name, value in changes.items() if getattr(holder, name) != value}
        if isinstance(holder, Tenant | Plan):
            quotas = {name: changes.pop(name) for name in holder.ADAPTER_QUOTAS if name in changes}
            if quotas:
                adapter_quotas.change(actor, holder, quotas)
        if not changes:
            return
        before = {name: getattr(holder, name) for name in changes}
        for name, value in changes.items():
            setattr(holder, name, value)
        check_budgets(holder, changes)
        holder.save(update_fields=list(changes))
        noun, subject = _NOUNS[type(holder)], subject_of(holder)
        tenant = holder if isinstance(holder, Tenant) else getattr(holder, "tenant", None)
        audit.record(actor, f"{noun}.limits_changed", subject, tenant=tenant, before=before, after=changes)


def check_values(holder: Holder, values: Mapping[str, int | None]) -> None:
    """Raises :class:`~tenants.errors.Invalid` for a limit that such a holder cannot have, by its name."""
    for name, value in values.items():
        _check(holder, name, value)


def check_budgets(holder: Holder, changed: Iterable[str]) -> None:
    """Raises :class:`~tenants.errors.Invalid` where a change leaves a soft budget that the hard one keeps from being
    reached. ``changed`` names limits, or ``plan``.
    """
    limits = holder.effective_limits() if isinstance(holder, Tenant) else holder.own_limits()
    soft, hard = limits["budget_soft"], limits["budget_hard"]
    if {"budget_soft", "budget_hard", "plan"}.isdisjoint(changed) or soft is None or hard is None:
        return
    if soft > hard:
        raise Invalid(f"budget_soft would be {soft}: above budget_hard, {hard}, it is never reached.", "budget_soft")


def subject_of(holder: Holder) -> str:
    """The holder as the audit log calls it."""
    if isinstance(holder, ApiKey):
        return holder.public_id
    return str(holder.user) if isinstance(holder, Member) else str(holder)


def _check(holder: Holder, name: str, value: int | None) -> None:
    if name not in names_for(type(holder)):
        raise Invalid(f"There is no limit {name!r}; limits are {', '.join(names_for(type(holder)))}.", name)
    if value is not None and type(value) is not int:
        raise Invalid(f"{name} has to be a whole number or null.", name)
    try:
        holder._meta.get_field(name).clean(value, holder)  # type: ignore[union-attr]
    except ValidationError as error:
        raise Invalid(f"{name}: {' '.join(error.messages)}", name) from None
