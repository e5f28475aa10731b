from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model

from tenants.errors import NotFound
from tenants.models import Tenant


def hold(row: Model, locked: Any, noun: str, name: str) -> None:
    """Read a row as it is now and keep it so until the transaction ends.

    :param locked: its model's rows, ``select_for_update``. Raises :class:`~tenants.errors.NotFound` where somebody
        deleted it since it was found.
    """
    try:
        row.refresh_from_db(from_queryset=locked)
    except ObjectDoesNotExist:
        raise NotFound(noun, name) from None


def hold_tenant(pk: UUID) -> Tenant:
    """An account's row as it is now, with its plan, for whoever counts what it has before adding to it: they come one
    after the other. Admission does not wait for this lock.

    Raises :class:`~tenants.errors.NotFound` where somebody deleted it since it was found.
    """
    locked: Any = Tenant.objects.select_for_update(no_key=True, of=("self",)).select_related("plan")
    found: Tenant | None = locked.filter(pk=pk).first()
    if found is None:
        raise NotFound("tenant", str(pk))
    return found
