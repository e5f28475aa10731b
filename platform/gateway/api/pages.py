"""Keyset pages, in the shape of OpenAI's lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, TypeVar

from django.db.models import QuerySet
from ninja import Query, Schema
from pydantic import Field

from tenants.keyset import following

Item = TypeVar("Item")

MOST = 100


class Page(Schema, Generic[Item]):
    """``after=<last_id>`` asks for what follows. What is added or removed meanwhile moves nothing else."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Window(Schema):
    """Which part of a list is wanted."""

    limit: Annotated[int, Field(ge=1, le=MOST)] = 20
    after: Annotated[str, Field(max_length=200)] | None = None


Wanted = Query[Window]


def page(
    rows: QuerySet[Any],
    window: Window,
    shown: Callable[[Any], Any],
    *,
    name: str,
    order: str = "-pk",
) -> dict[str, Any]:
    """One page of ``rows``, which are already narrowed to what the caller may see.

    :param shown: a row as the API shows it. :param name: the field that its id is, unique among ``rows``.
    :param order: a unique field of the rows themselves, ``-`` before it for the last one first.

    Raises :class:`~tenants.errors.Invalid` for an ``after`` that is not among them, a stranger's included.
    """
    shown_rows, more = following(rows, name=name, order=order, after=window.after, limit=window.limit)
    ids = [str(getattr(row, name)) for row in shown_rows]
    return {
        "data": [shown(row) for row in shown_rows],
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": more,
    }


def as_page(data: list[Any], more: bool) -> dict[str, Any]:
    """One page of objects as the API shows them, by their ``id``; ``more``: there are others after them."""
    ends = (data[0].id, data[-1].id) if data else (None, None)
    return {"data": data, "first_id": ends[0], "last_id": ends[1], "has_more": more}
