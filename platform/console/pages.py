"""The console's pages: each is a view registered under its path, at the platform, at a tenant, or at both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Concatenate, Literal, overload

from django.http import HttpRequest, HttpResponse

from console.place import Place, TenantPlace
from tenants.callers import Role

View = Callable[..., HttpResponse]


class At(Flag):
    """Where a page is: ``/console/<path>`` for operators, ``/console/t/<tenant>/<path>`` for the tenant's members and
    operators.
    """

    PLATFORM = auto()
    TENANT = auto()
    BOTH = PLATFORM | TENANT


@dataclass(frozen=True, slots=True)
class Page:
    """A registered page.

    :param role: the least role that may see it at a tenant. :param post: whether it takes forms.
    """

    name: str
    path: str
    at: At
    role: Role
    post: bool
    view: View

    def open_to(self, place: Place) -> bool:
        """Whether whoever is at this place may see the page there."""
        here = At.PLATFORM if place.caller is None else At.TENANT
        return here in self.at and place.may(self.role)


_PAGES: dict[str, Page] = {}


@overload
def page(
    path: str, name: str, *, at: Literal[At.TENANT], role: Role = ..., post: bool = ...
) -> Callable[[Callable[Concatenate[HttpRequest, TenantPlace, ...], HttpResponse]], View]: ...


@overload
def page(
    path: str, name: str, *, at: At = ..., role: Role = ..., post: bool = ...
) -> Callable[[Callable[Concatenate[HttpRequest, Place, ...], HttpResponse]], View]: ...


def page(
    path: str, name: str, *, at: At = At.BOTH, role: Role = Role.VIEWER, post: bool = False
) -> Callable[[View], View]:
    """Registers ``view(request, place, *arguments of the path)``; :mod:`console.serving` says how it is served. With
    ``at=At.TENANT`` the place is a :class:`~console.place.TenantPlace`: it has a tenant and a caller.

    :param path: with Django's converters; under ``/console/`` or ``/console/t/<tenant>/``.
    :param name: how :meth:`~console.place.Place.url` and the template tag ``to`` call it.
    :param role: the least role; others get a page that says which role it needs.
    :param post: whether it takes forms. What changes something takes nothing else.
    """

    def register(view: View) -> View:
        assert name not in _PAGES, f"two pages are called {name}"
        _PAGES[name] = Page(name, path, at, role, post, view)
        return view

    return register


@cache
def pages() -> dict[str, Page]:
    """Every page of :mod:`console.screens`, by name."""
    import console.screens

    for module in iter_modules(console.screens.__path__):
        import_module(f"console.screens.{module.name}")
    return _PAGES
