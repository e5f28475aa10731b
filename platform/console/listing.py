from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from tenants.keyset import following

SIZE = 50


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a long list. :param more: the address of the next one, ``""`` on the last.
    :param first: whether this is the first one. :param query: what was searched for.
    :param start: the first one's address, ``""``: that of the page without anything asked.
    """

    items: list[Any]
    more: str
    first: bool
    query: str
    start: str = ""

    @property
    def filtered(self) -> bool:
        return bool(self.query)


def listing(request: HttpRequest, rows: QuerySet[Any], *, name: str = "pk", order: str = "-pk") -> Listing:
    """The page of ``rows`` that ``?after=`` asks for; ``?…`` otherwise stays as it is.

    :param rows: narrowed to the place, and by the page's filters. :param name: as of :func:`tenants.keyset.following`.
    """
    after = request.GET.get("after") or None
    items, more = following(rows, name=name, order=order, after=after, limit=SIZE)
    query = request.GET.copy()
    query.pop("after", None)
    start = f"{request.path}?{query.urlencode()}" if query else request.path
    if more:
        query["after"] = str(getattr(items[-1], name))
    url = f"{request.path}?{query.urlencode()}" if more else ""
    return Listing(items, url, after is None, searched(request), start)


def searched(request: HttpRequest) -> str:
    """What the search field says; nothing that PostgreSQL would refuse."""
    return request.GET.get("q", "").replace("\0", "").strip()[:200]
