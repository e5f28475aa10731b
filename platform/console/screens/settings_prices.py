from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone

from console.forms import posted
from console.listing import listing, searched
from console.pages import At, page
from console.place import Place
from console.price_forms import PriceForm
from console.render import render
from tenants import pricing
from tenants.models import BaseModel


@page("settings/prices", "prices", at=At.PLATFORM)
def prices(request: HttpRequest, place: Place) -> HttpResponse:
    query, rows = searched(request), pricing.prices()
    if query:
        rows = rows.filter(base_model__name__startswith=query)
    past = listing(request, rows)
    context: dict[str, Any] = {"listing": past, "models": BaseModel.objects.exists(), "moment": timezone.now()}
    if past.first:
        context["now"] = list(rows.filter(in_force=True).order_by("base_model__name", "plan__name")[:200])
    return render(request, place, "console/settings_prices.html", context)


@page("settings/prices/new", "price-new", at=At.PLATFORM, post=True)
def new(request: HttpRequest, place: Place) -> HttpResponse:
    form = PriceForm(posted(request), initial={"model": request.GET.get("model", "")})
    if request.method == "POST" and form.carry_out(
        lambda said: pricing.set_price(
            place.actor,
            said["model"],
            input=said["input"],
            cached_input=said["cached_input"],
            output=said["output"],
            plan=said["plan"],
            valid_from=said["valid_from"],
        )
    ):
        whose = f" on the plan {form.result.plan}" if form.result.plan else ""
        messages.success(request, f"The price of {form.result.base_model}{whose} is set.")
        return HttpResponseRedirect(place.url("prices"))
    context = {
        "form": form,
        "title": "Set a price",
        "text": "It holds for requests admitted from then on, alone and under adapters. A price is never changed or "
        "deleted: a later one takes its place.",
        "button": "Set the price",
        "list": "prices",
        "list_title": "Prices",
    }
    return render(request, place, "console/form_page.html", context)
