from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console.charts import Bucket, Chart
from console.listing import searched
from console.pages import page
from console.place import Place
from console.render import render
from console.spans import PERIODS, Span, span_of
from tenants.errors import Invalid
from tenants.models import ReconciliationRun, UsageMark
from tenants.standing import standing
from tenants.usage import SUMS, AnyPart, dearest, each_used, used
from tenants.usage_csv import usage_csv

SHOWN = 100
"""Rows of the table; the rest is in the file."""

_PARTS = {"model": "Model", "adapter": "Adapter", "key": "Key", "member": "Member", "day": "Day", "month": "Month"}
_TIMES = ("day", "month")
_NAMELESS = {"adapter": "no adapter: the base model", "member": "no member: the account's own keys"}


@page("usage", "usage")
def usage(request: HttpRequest, place: Place) -> HttpResponse:
    """What was used: by whom or what, what it costs, as a table and as a file."""
    span, by = span_of(request.GET), _by(request, place)
    if request.GET.get("format"):
        return _file(request, place, span, by)
    rows, totals, count = _rows(place, span, by, searched(request))
    for row in rows:
        row["share"] = row["cost"] / totals["cost"] if totals["cost"] else None
        row["text"] = row.get("label") or row["name"] or _NAMELESS.get(by, "–")
    context = {
        "span": span,
        "by": by,
        "parts": _parts(place),
        "part": _parts(place)[by],
        "timed": by in _TIMES,
        "periods": [
            (name, text, _query(request, period=name, **{"from": "", "to": ""})) for name, text in PERIODS.items()
        ],
        "query": searched(request),
        "currency": settings.CURRENCY,
        "rows": rows,
        "totals": totals,
        "count": count,
        "hidden": count - len(rows),
        "chart_query": _query(request, q="", by=""),
        "file_query": _query(request, q="", format="csv"),
        "daily_query": _query(request, q="", format="csv", each="day"),
    }
    return render(request, place, "console/usage.html", context | _money(place))


@page("usage/chart", "usage-chart")
def usage_chart(request: HttpRequest, place: Place) -> HttpResponse:
    """The charts of the page of usage, which asks for them once it is there."""
    span = span_of(request.GET)
    charts = usage_charts(used(place.tenant, span.since, span.until, bucket=span.bucket, by=[]), span)
    return render(
        request, place, "console/usage_chart.html", {"charts": charts, "part": "HX-Request" in request.headers}
    )


def usage_charts(rows: list[dict[str, Any]], span: Span) -> list[Chart]:
    moments = list(_moments(span))
    found = {row["at"]: row for row in rows}

    def chart(title: str, unit: Any, **series: str) -> Chart:
        values = {label: [found[at][name] if at in found else 0 for at in moments] for label, name in series.items()}
        written = {label.replace("_", " "): value for label, value in values.items()}
        return Chart(title, unit, span.bucket, moments, written, "bars" if len(series) == 1 else "lines")

    return [
        chart("Cost", "money", Cost="cost"),
        chart("Tokens", "number", Prompt="prompt_tokens", Output="completion_tokens"),
        chart("Requests", "number", Ended="requests", Not_completed="not_completed"),
    ]


def _moments(span: Span) -> Iterator[datetime]:
    """Beginnings of the hours, days or months, none of them in the future."""
    at, end = span.since, min(span.until, timezone.now())
    if span.bucket == "month":
        at = at.replace(day=1)
    while at < end:
        yield at
        match span.bucket:
            case "hour":
                at += timedelta(hours=1)
            case "day":
                at += timedelta(days=1)
            case "month":
                at = (at + timedelta(days=31)).replace(day=1)


def _parts(place: Place) -> dict[str, str]:
    if place.tenant is not None:
        return _PARTS
    everybody = {"tenant": "Account", "base_model": "Base model"} | _PARTS
    del everybody["model"]  # ten thousand adapters' names, each of which stands under Adapter as well
    return everybody


def _by(request: HttpRequest, place: Place) -> str:
    parts = _parts(place)
    by = request.GET.get("by") or next(iter(parts))
    if by not in parts:
        raise Invalid(f"by has to be one of {', '.join(parts)}.", "by")
    return by


def _rows(place: Place, span: Span, by: str, named: str) -> tuple[list[dict[str, Any]], dict[str, int], int]:
    """The table's rows, what everything found comes to, and how much was found."""
    if by not in _TIMES:
        found = dearest(place.tenant, span.since, span.until, cast(AnyPart, by), most=SHOWN, named=named)
        return found.rows, found.totals, found.count
    rows = used(place.tenant, span.since, span.until, bucket=cast(Bucket, by), by=[])
    for row in rows:
        row["name"] = f"{row['at']:%Y-%m-%d}" if by == "day" else f"{row['at']:%Y-%m}"
    return rows, {name: sum(row[name] for row in rows) for name in SUMS}, len(rows)


def _file(request: HttpRequest, place: Place, span: Span, by: str) -> HttpResponse:
    if request.GET["format"] != "csv":
        raise Invalid("format has to be csv, or left out.", "format")
    parts: list[AnyPart] = [] if by in _TIMES else [cast(AnyPart, by)]
    bucket: Any = by if by in _TIMES else "day" if request.GET.get("each") == "day" else "all"
    rows = each_used(place.tenant, span.since, span.until, bucket=bucket, by=parts)
    whose = place.tenant.slug if place.tenant else "everybody"
    by_what = by if bucket in ("all", by) else f"{by}-and-{bucket}"
    return usage_csv(parts, rows, f"{whose}-{span.first}-{span.last}-by-{by_what}")


def _query(request: HttpRequest, **changes: str) -> str:
    query = request.GET.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return query.urlencode()


def _money(place: Place) -> dict[str, Any]:
    """At an account, what this month costs against its budgets; at the platform, whether the books are right."""
    if place.tenant is not None:
        return {"standing": standing(place.tenant)[0]}
    runs = ReconciliationRun.objects.all()
    mark = UsageMark.objects.filter(pk=1).first()
    return {
        "rolled_up": mark and mark.covered_until,
        "last_run": runs.exclude(state=ReconciliationRun.State.QUEUED).first(),
        "queued_run": runs.filter(state=ReconciliationRun.State.QUEUED).first(),
    }
