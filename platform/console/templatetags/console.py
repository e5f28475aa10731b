"""Tags and filters of the console's templates: addresses within the place, and numbers with their units."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from django import template
from django.conf import settings
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console.amounts import parts
from console.pages import pages

register = template.Library()

_NOTHING = "–"
_THIN = "\u202f"
_BYTES = ("B", "kB", "MB", "GB", "TB")


@register.simple_tag(takes_context=True)
def to(context: template.Context, name: str, *args: Any) -> str:
    """The address of a page where one is."""
    return str(context["place"].url(name, *args))


@register.simple_tag(takes_context=True)
def can(context: template.Context, name: str) -> bool:
    """Whether one may see that page, where one is: ``{% can "key-revoke" as revocable %}``. Raises ``KeyError`` for a
    page that there is none of.
    """
    return pages()[name].open_to(context["place"])


@register.filter
def when(moment: datetime | None, length: Literal["", "short"] = "") -> SafeString | str:
    """A time, which the page's script writes in the reader's zone; without it, in UTC.

    :param length: ``short``: without seconds, for columns of lists.
    """
    if moment is None:
        return _NOTHING
    moment = moment.astimezone(UTC)
    shown = moment.strftime("%Y-%m-%d %H:%M" if length == "short" else "%Y-%m-%d %H:%M:%S")
    return format_html('<time datetime="{}" data-local="{}">{} UTC</time>', moment.isoformat(), length, shown)


@register.filter
def number(value: float | None) -> str:
    """``1 234 567``."""
    if value is None:
        return _NOTHING
    return f"{value:,}".replace(",", _THIN)


@register.filter
def money(micro: int | None) -> str:
    """Micro-units as money: ``0.001234 USD``, at least two digits after the point."""
    if micro is None:
        return _NOTHING
    whole, part = parts(abs(micro))
    sign = "−" if micro < 0 else ""
    return f"{sign}{number(whole)}.{part} {settings.CURRENCY}"


@register.filter
def percent(share: float | None) -> str:
    """``0.123`` as ``12.3 %``."""
    return _NOTHING if share is None else f"{share * 100:.1f} %"


@register.filter
def seconds(value: float | None) -> str:
    """``0.0123`` as ``12 ms``, ``1.5`` as ``1.50 s``."""
    if value is None:
        return _NOTHING
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


@register.filter
def size(count: int | None) -> str:
    """Bytes: ``9.8 MB``."""
    if count is None:
        return _NOTHING
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_BYTES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_BYTES[unit]}" if unit == 0 else f"{value:.1f} {_BYTES[unit]}"
