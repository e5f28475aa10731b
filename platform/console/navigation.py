"""The console's menu. What somebody may not see is not in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.http import HttpRequest

from console.pages import pages

if TYPE_CHECKING:
    from console.place import Place

_GROUPS = (
    ("", (("overview", "Overview"), ("playground", "Playground"))),
    ("Serving", (("adapters", "Adapters"), ("workers", "Models and workers"), ("batches", "Batches"))),
    (
        "Watching",
        (("requests", "Requests"), ("denials", "Denials"), ("usage", "Usage and billing"), ("audit", "Audit")),
    ),
    ("Access", (("tenants", "Tenants"), ("account", "Account"), ("keys", "Keys"), ("members", "Members"))),
    ("Setting up", (("webhooks", "Webhooks"), ("settings", "Settings"))),
)


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    url: str
    current: bool


TITLES = {name: title for _, entries in _GROUPS for name, title in entries}
"""What the menu calls a page, by the page's name."""


def menu(request: HttpRequest, place: Place) -> list[tuple[str, list[Entry]]]:
    """Groups of entries, the group's title first."""
    found = []
    for title, entries in _GROUPS:
        shown = [entry for name, text in entries if (entry := _entry(request, place, name, text)) is not None]
        if shown:
            found.append((title, shown))
    return found


def _entry(request: HttpRequest, place: Place, name: str, text: str) -> Entry | None:
    if not pages()[name].open_to(place):
        return None
    url = place.url(name)
    return Entry(text, url, request.path == url or (name != "overview" and request.path.startswith(f"{url}/")))
