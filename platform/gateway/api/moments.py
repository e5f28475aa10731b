from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, WithJsonSchema


def _text(value: Any) -> Any:
    """Pydantic would take a number, also one in a text, for seconds since 1970: ``20300131`` is no such time."""
    if value is not None and (not isinstance(value, str | datetime) or _is_number(value)):
        raise ValueError("has to be a text such as 2030-01-31T00:00:00Z")
    return value


def _is_number(value: str | datetime) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _in_utc(moment: datetime) -> datetime:
    """PostgreSQL knows no offset beyond 15:59, Python no year before 1 or after 9999."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("has to be a time of the years 1 to 9999") from None


def _beginning(value: Any) -> Any:
    """Of the UTC day that ``value`` may be. All else is left to what follows."""
    if isinstance(value, str) and len(value) == len("2030-01-31"):
        with suppress(ValueError):
            return datetime.combine(date.fromisoformat(value), time.min, UTC)
    return value


Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_text), AfterValidator(_in_utc)]
"""A time with its offset, in a query or a body; in UTC from here on."""

Border = Annotated[
    Moment,
    BeforeValidator(_beginning),
    WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "date"}]}),
]
"""Where a list begins or ends: as :data:`Moment`, or a day, which is its beginning in UTC."""
