"""Which of a tenant's models a key or member may use, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from tenants import audit, rows
from tenants.actors import Actor
from tenants.errors import Invalid
from tenants.limits import subject_of
from tenants.models import Adapter, ApiKey, BaseModel, Member, Tenant


def restrict(actor: Actor, holder: Member | ApiKey, names: Sequence[str] | None) -> None:
    """Let the holder use these models of its tenant and no others; ``None``: all of them. From the next request on.

    In which order they are named is no matter. Raises :class:`~tenants.errors.Invalid` for a model that the tenant may
    not use itself, and :class:`~tenants.errors.NotFound` where somebody deleted the holder since it was found.
    """
    found = (None, None) if names is None else ids_of(holder.tenant, names)
    with transaction.atomic():
        # read again under a lock: what somebody else is just setting is what this comes after
        locked: Any = type(holder)._base_manager.select_for_update(no_key=True, of=("self",))
        rows.hold(holder, locked, str(type(holder)._meta.verbose_name), str(holder))
        if _sets(found) == _sets((holder.only_models, holder.only_adapters)):
            return
        before = {"models": names_of(holder)}
        holder.only_models, holder.only_adapters = found
        holder.save(update_fields=["only_models", "only_adapters"])
        noun = "member" if isinstance(holder, Member) else "key"
        after = {"models": names_of(holder)}
        audit.record(actor, f"{noun}.restricted", subject_of(holder), tenant=holder.tenant, before=before, after=after)


def _sets(ids: Sequence[Sequence[int] | None]) -> list[set[int] | None]:
    return [None if each is None else set(each) for each in ids]


def ids_of(tenant: Tenant, names: Sequence[str], param: str = "models") -> tuple[list[int], list[int]]:
    """``only_models`` and ``only_adapters`` for models as in ``model``: ``llama-tiny``, ``acme/pirate``.

    Raises :class:`~tenants.errors.Invalid` for one that the tenant may not use itself.
    """
    bases: list[int] = []
    adapters: list[int] = []
    for name in names:
        owner, slash, short = name.partition("/")
        found: Any
        if slash:
            found = Adapter.objects.filter(tenant__slug=owner, name=short).first()
            usable = found and (found.tenant_id == tenant.pk or found.allowances.filter(tenant=tenant).exists())
            into = adapters
        else:
            found = BaseModel.objects.filter(name=name).first()
            usable = found and found.allowances.filter(tenant=tenant).exists()
            into = bases
        if not usable:
            raise Invalid(f"{tenant} has no model {name!r}.", param)
        into.append(found.pk)
    return bases, adapters


def names_of(holder: Member | ApiKey) -> list[str] | None:
    """Names of the models that the holder is restricted to; ``None``: not restricted.

    A model whose row is gone has no name and is left out: nobody can use it.
    """
    return names_of_all([holder])[0]


def names_of_all(holders: Sequence[Member | ApiKey]) -> list[list[str] | None]:
    """As :func:`names_of`, of many with two queries; with none where nobody is restricted."""
    bases = {pk for holder in holders for pk in holder.only_models or ()}
    adapters = {pk for holder in holders for pk in holder.only_adapters or ()}
    base_names = dict(BaseModel.objects.filter(pk__in=bases).values_list("pk", "name")) if bases else {}
    found = Adapter.objects.unscoped().filter(pk__in=adapters).select_related("tenant") if adapters else ()
    adapter_names = {adapter.pk: str(adapter) for adapter in found}
    return [
        None
        if holder.only_models is None and holder.only_adapters is None
        else sorted(base_names[pk] for pk in holder.only_models or () if pk in base_names)
        + sorted(adapter_names[pk] for pk in holder.only_adapters or () if pk in adapter_names)
        for holder in holders
    ]
