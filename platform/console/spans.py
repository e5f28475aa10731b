"""Times that somebody picks: today, this month, between two days (UTC)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from django.http import QueryDict
from django.utils import timezone

from console.charts import Bucket
from tenants.errors import Invalid
from tenants.usage import MOST_DAYS

PERIODS = {
    "today": "Today",
    "7d": "7 days",
    "30d": "30 days",
    "month": "This month",
    "last-month": "Last month",
    "year": "12 months",
}
DEFAULT = "month"


@dataclass(frozen=True, slots=True)
class Span:
    """:param first: and :param last: days (UTC), both included.
    :param period: of :data:`PERIODS`; ``""``: two days that somebody named.
    """

    first: date
    last: date
    period: str

    @property
    def since(self) -> datetime:
        return datetime.combine(self.first, time.min, UTC)

    @property
    def until(self) -> datetime:
        """Exclusive."""
        return datetime.combine(self.last + timedelta(days=1), time.min, UTC)

    @property
    def bucket(self) -> Bucket:
        """In which a chart of it reads well."""
        days = (self.last - self.first).days + 1
        return "hour" if days <= 3 else "day" if days <= 100 else "month"


def span_of(query: QueryDict) -> Span:
    """What ``?period=`` or ``?from=`` and ``?to=`` say.

    Raises :class:`~tenants.errors.Invalid` naming the one at fault.
    """
    today = timezone.now().astimezone(UTC).date()
    if query.get("from") or query.get("to"):
        first = _day(query, "from") or today.replace(day=1)
        last = _day(query, "to") or today
        if not first <= last or (last - first).days >= MOST_DAYS:
            raise Invalid(f"from has to be a day before to, and at most {MOST_DAYS} days before it.", "from")
        return Span(first, last, "")
    period = query.get("period") or DEFAULT
    match period:
        case "today":
            return Span(today, today, period)
        case "7d" | "30d":
            return Span(today - timedelta(days=int(period[:-1]) - 1), today, period)
        case "month":
            return Span(today.replace(day=1), today, period)
        case "last-month":
            last = today.replace(day=1) - timedelta(days=1)
            return Span(last.replace(day=1), last, period)
        case "year":
            return Span(_months_before(today, 11), today, period)
    raise Invalid(f"period has to be one of {', '.join(PERIODS)}.", "period")


def _months_before(day: date, months: int) -> date:
    number = day.year * 12 + day.month - 1 - months
    return date(number // 12, number % 12 + 1, 1)


def _day(query: QueryDict, name: str) -> date | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{name} has to be a day such as 2026-01-31.", name) from None
    if not 1970 <= day.year <= 9998:
        raise Invalid(f"{name} has to be a day between the years 1970 and 9998.", name)
    return day
