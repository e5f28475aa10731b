"""Pages of long lists by the last row seen, not by a number: what comes or goes meanwhile moves nothing else."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from tenants.errors import Invalid


def following(rows: QuerySet[Any], *, name: str, order: str, after: str | None, limit: int) -> tuple[list[Any], bool]:
    """Up to ``limit`` rows after the one that ``after`` names, and whether there are more.

    :param rows: already narrowed to what may be seen. :param name: the field that ``after`` is a value of, unique
        among ``rows``. :param order: a unique field of the rows themselves, ``-`` before it for the last one first.

    Raises :class:`~tenants.errors.Invalid` for an ``after`` that is not among ``rows``, a stranger's included.
    """
    field = order.removeprefix("-")
    if after is not None:
        try:
            if "\0" in after:  # which PostgreSQL refuses by itself, as an error of ours
                raise ValueError
            last = rows.filter(**{name: after}).values_list(field, flat=True).first()
        except (ValueError, TypeError, ValidationError):  # not even the form of an id
            last = None
        if last is None:
            raise Invalid("after: there is nothing of this id in the list.", "after")
        rows = rows.filter(**{f"{field}__{'lt' if order.startswith('-') else 'gt'}": last})
    found = list(rows.order_by(order)[: limit + 1])
    return found[:limit], len(found) > limit
