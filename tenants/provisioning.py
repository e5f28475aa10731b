"""Tenants come, change, are suspended and go; operators only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from tenants import audit, rows, webhooks
from tenants.actors import Actor
from tenants.counted import counted
from tenants.errors import Conflict, Invalid, NotFound
from tenants.limits import check_budgets, set_limits
from tenants.models import BaseModel, ModelAllowance, Plan, Tenant

_SHOWN = ("display_name", "plan", "weight")

_GO_WITH_IT = ("api_keys", "members", "accounts", "usage", "denials", "model_allowances", "adapter_allowances")
"""What a tenant that never made a request may be deleted with. Anything else keeps it."""


def find(slug: str, param: str | None = None) -> Tenant:
    """Raises :class:`~tenants.errors.NotFound`, :class:`~tenants.errors.Invalid` where ``param`` is what names it."""
    tenant = Tenant.objects.select_related("plan").filter(slug=slug).first() if "\0" not in slug else None
    if tenant is None:
        if param is not None:
            raise Invalid(f"There is no tenant {slug[:100]!r}.", param)
        raise NotFound("tenant", slug)
    return tenant


def create(
    actor: Actor,
    slug: str,
    *,
    display_name: str = "",
    plan: Plan | None = None,
    weight: int = 1,
    limits: Mapping[str, int | None] | None = None,
    base_models: Sequence[BaseModel] | None = None,
) -> Tenant:
    """A new tenant.

    :param slug: the part before ``/`` in its models' names; it never changes.
    :param plan: ``None``: the standard one.
    :param base_models: that it may use; ``None``: the one registered first.

    Raises :class:`~tenants.errors.Conflict` where the slug is taken and :class:`~tenants.errors.Invalid`.
    """
    tenant = Tenant(slug=slug, display_name=display_name or slug, plan=plan or Plan.standard(), weight=weight)
    with transaction.atomic():
        _clean(tenant)
        try:
            with transaction.atomic():
                tenant.save(force_insert=True)
        except IntegrityError:  # somebody else was first, after the look above
            raise _taken(slug) from None
        if base_models is None:
            base_models = list(BaseModel.objects.filter(state=BaseModel.State.ACTIVE).order_by("pk")[:1])
        ModelAllowance.objects.bulk_create(
            ModelAllowance(tenant=tenant, base_model=base_model) for base_model in base_models
        )
        after = audit.snapshot(tenant, _SHOWN) | {"models": [str(model) for model in base_models]}
        audit.record(actor, "tenant.created", slug, tenant=tenant, after=after)
        if limits:
            set_limits(actor, tenant, limits)
    return tenant


def change(
    actor: Actor,
    tenant: Tenant,
    *,
    display_name: str | None = None,
    plan: Plan | None = None,
    weight: int | None = None,
    limits: Mapping[str, int | None] | None = None,
) -> None:
    """Change what is given. The plan's limits hold from the next request on, the weight from the next grant.

    Raises :class:`~tenants.errors.Invalid`.
    """
    wanted = {"display_name": display_name, "plan": plan, "weight": weight}
    given = {name: value for name, value in wanted.items() if value is not None}
    with transaction.atomic():
        _lock(tenant)
        before = audit.snapshot(tenant, given)
        for name, value in given.items():
            setattr(tenant, name, value)
        _clean(tenant)
        after = audit.snapshot(tenant, given)
        if before != after:
            tenant.save(update_fields=list(given))
            audit.record(actor, "tenant.changed", tenant.slug, tenant=tenant, before=before, after=after)
        if limits:
            set_limits(actor, tenant, limits)
        check_budgets(tenant, given)


def suspend(actor: Actor, tenant: Tenant, reason: str = "") -> None:
    """Refuse its requests from now on, and stop those that run within seconds. Keys stay what they are."""
    _set_state(actor, tenant, Tenant.State.SUSPENDED, "tenant.suspended", reason)


def resume(actor: Actor, tenant: Tenant, reason: str = "") -> None:
    """Take its requests again."""
    _set_state(actor, tenant, Tenant.State.ACTIVE, "tenant.resumed", reason)


def delete(actor: Actor, tenant: Tenant) -> None:
    """Remove a tenant that never made a request, with its keys and members.

    Raises :class:`~tenants.errors.Conflict`, which names what keeps it: such a tenant can only be suspended.
    """
    with transaction.atomic():
        _lock(tenant)
        kept = _what_keeps(tenant)
        if kept:
            raise _in_use(tenant, kept)
        audit.record(actor, "tenant.deleted", tenant.slug, tenant=tenant, before=audit.snapshot(tenant, _SHOWN))
        try:
            for name in _GO_WITH_IT:
                getattr(tenant, name).all().delete()
            tenant.delete()
        except ProtectedError as error:
            nouns = sorted({str(item._meta.verbose_name_plural) for item in error.protected_objects})
            raise _in_use(tenant, nouns) from None


def _set_state(actor: Actor, tenant: Tenant, state: str, action: str, reason: str) -> None:
    with transaction.atomic():
        _lock(tenant)
        if tenant.state == state:
            return
        before, tenant.state = {"state": tenant.state}, state
        tenant.save(update_fields=["state"])
        after = {"state": state} | ({"reason": reason} if reason else {})
        audit.record(actor, action, tenant.slug, tenant=tenant, before=before, after=after)
        webhooks.emit(tenant, action, {"reason": reason or None})


def _lock(tenant: Tenant) -> None:
    """Hold its row, and read what it is now. Admissions go on meanwhile. Raises :class:`~tenants.errors.NotFound`."""
    rows.hold(tenant, Tenant.objects.select_for_update(no_key=True), "tenant", tenant.slug)


def _what_keeps(tenant: Tenant) -> list[str]:
    found = []
    for relation in Tenant._meta.related_objects:
        name = relation.get_accessor_name()
        if name is None or name in _GO_WITH_IT or name == "audit":
            continue
        count = relation.related_model._base_manager.filter(**{relation.field.name: tenant}).count()
        if count:
            words = relation.related_model._meta
            found.append(counted(count, str(words.verbose_name), str(words.verbose_name_plural)))
    return found


def _clean(tenant: Tenant) -> None:
    try:
        tenant.full_clean()
    except ValidationError as error:
        if any(item.code == "unique" for item in error.error_dict.get("slug", [])):
            raise _taken(tenant.slug) from None
        name, messages = next(iter(error.message_dict.items()))
        raise Invalid(f"{name}: {' '.join(messages)}", name) from None
    if not tenant.display_name.isprintable():  # it stands in mails and questions, where a line break would forge more
        raise Invalid("display_name has to be of printable characters, on one line.", "display_name")


def _taken(slug: str) -> Conflict:
    return Conflict(f"There is a tenant {slug!r} already.", "slug", "name_taken")


def _in_use(tenant: Tenant, kept: Sequence[str]) -> Conflict:
    return Conflict(f"{tenant} has {', '.join(kept)}: it can only be suspended.", code="tenant_in_use")
