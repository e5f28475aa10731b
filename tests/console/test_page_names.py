"""A page that is called by a name that there is none of is a mistake that shows at once, not a link that is missing."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.template import Context, Template

from console.navigation import TITLES
from console.pages import pages
from console.place import Place
from console.screens.overview import _WHERE, _where
from tenants.actors import Actor
from tenants.callers import Operator

PLACE = Place(User(), Operator("staff:1", Actor("operator", "ann")), None)


def test_menu_and_alerts_name_pages() -> None:
    assert set(TITLES) <= set(pages())
    assert set(_WHERE.values()) <= set(pages())


def test_a_mistyped_name_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match="no-such"):
        Template('{% load console %}{% can "no-such" as it %}').render(Context({"place": PLACE}))
    monkeypatch.setitem(_WHERE, "books_wrong", "no-such")
    with pytest.raises(KeyError, match="no-such"):
        _where(PLACE, "books_wrong")
    assert _where(PLACE, "model_unavailable") == {}
