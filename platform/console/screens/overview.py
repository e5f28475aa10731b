from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console import now
from console.charts import Chart
from console.navigation import TITLES
from console.pages import page, pages
from console.place import Place
from console.render import render
from fleet import latency, samples
from fleet.overview import overview as platform_overview
from tenants import overview as tenant_overview
from tenants.latency import SHARES
from tenants.models import BaseModel, LedgerEntry, Tenant

HOURS = 24
MINUTES = 15

_WHERE = {
    "worker_down": "workers",
    "worker_unseen": "workers",
    "model_unserved": "workers",
    "books_wrong": "reconciliation",
    "rollups_late": "usage",
    "budget_soft": "usage",
    "limit_reached": "usage",
    "limit_near": "usage",
    "key_expiring": "keys",
    "adapter_rejected": "adapters",
    "webhook_failing": "webhooks",
    "refused": "denials",
}
"""The page on which to do something about an alert, by the alert's code; there is none for what only operators mend."""

_LATENCIES = {
    "first_token": "To the first token",
    "inter_token": "Between tokens",
    "queue": "In a worker’s queue",
    "whole": "A whole request",
}


@page("overview", "overview")
def overview(request: HttpRequest, place: Place) -> HttpResponse:
    """How it goes, now and over the last day, and what needs doing."""
    context = _of_platform() if place.tenant is None else _of_tenant(place.tenant)
    context["alerts"] = [alert | _where(place, alert["code"]) for alert in context["alerts"]]
    context["as_of"] = timezone.now()
    context["live_url"] = place.url("overview").removesuffix("overview") + "live"
    return render(request, place, "console/overview.html", context)


def _of_platform() -> dict[str, Any]:
    found = platform_overview(HOURS, MINUTES)
    latest, first = samples.latest(), samples.first_since(timezone.now() - timedelta(minutes=MINUTES))
    grown = [
        (early, late)
        for worker, sample in latest.items()
        if worker in first
        and (late := samples.report_of(sample)) is not None
        and (early := samples.report_of(first[worker])) is not None
    ]
    workers = [now.Load.of(row) for row in found["workers"]]
    begun = {
        "workers": bool(workers),
        "models": BaseModel.objects.filter(state="active").exists(),
        "tenants": Tenant.objects.exists(),
        "request": LedgerEntry.objects.unscoped().exists(),
    }
    return found | {
        **_measured(latency.latencies(grown), f"{MINUTES} minutes"),
        "charts": [*_charts(found["hours"]), _first_token_chart(found["hours"])],
        "steps": None if all(begun.values()) else begun,
        "now": now.of_platform(workers),
    }


def _of_tenant(tenant: Tenant) -> dict[str, Any]:
    found = tenant_overview.overview(tenant, HOURS)
    figures = now.of_tenants([tenant])[tenant.pk]
    gone = [
        {
            "code": "model_unavailable",
            "about": name,
            "message": f"The model {name} is not available at the moment.",
            "action": "Its requests are refused with 503; the operators see the same and are at it.",
        }
        for name, served in figures["available"]
        if served is False
    ]
    done = found.pop("steps")
    return found | {
        **_measured(found.pop("latency"), "hour"),
        "alerts": [*found["alerts"], *gone],
        "charts": _charts(found["hours"]),
        "steps": None if done["request"] and done["key"] else done,
        "now": figures,
    }


def _measured(latencies: dict[str, dict[str, Any]], over: str) -> dict[str, Any]:
    """:param over: the time that they were measured in."""
    return {
        "latencies": [(_LATENCIES[name], values) for name, values in latencies.items()],
        "measured": any(values["count"] for values in latencies.values()),
        "measured_over": over,
    }


def _charts(hours: list[dict[str, Any]]) -> list[Chart]:
    moments = [hour["hour"] for hour in hours]

    def values(name: str) -> list[float | None]:
        return [hour[name] for hour in hours]

    return [
        Chart(
            "Requests an hour",
            "number",
            "hour",
            moments,
            {"Ended": values("requests"), "Not completed": values("not_completed"), "Refused": values("denied")},
            "lines",
        ),
        Chart(
            "Tokens an hour",
            "number",
            "hour",
            moments,
            {"Prompt": values("prompt_tokens"), "Output": values("completion_tokens")},
            "lines",
        ),
        Chart("Cost an hour", "money", "hour", moments, {"Cost": values("cost")}),
    ]


def _first_token_chart(hours: list[dict[str, Any]]) -> Chart:
    moments = [hour["hour"].astimezone(UTC) for hour in hours]
    found = latency.by_hour(moments[0])
    series = {share: [found[at]["first_token"][share] if at in found else None for at in moments] for share in SHARES}
    return Chart("Time to the first token", "seconds", "hour", moments, series, "lines")


def _where(place: Place, code: str) -> dict[str, str]:
    """Address and title of the page on which to do something about it, if there is one that may be seen."""
    name = _WHERE.get(code)
    if name is None or not pages()[name].open_to(place):
        return {}
    return {"url": place.url(name), "title": TITLES.get(name, name.capitalize())}
