from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from console.confirm import confirm
from console.forms import posted
from console.limit_words import WORDS
from console.listing import listing, searched
from console.pages import At, page
from console.place import Place
from console.plan_forms import NewPlanForm, PlanForm
from console.render import render
from tenants import plans
from tenants.counted import counted
from tenants.limits import names_for
from tenants.models import Plan, Tenant


@page("settings/plans", "plans", at=At.PLATFORM)
def all_plans(request: HttpRequest, place: Place) -> HttpResponse:
    query = searched(request)
    own = Tenant.objects.filter(plan=OuterRef("pk")).order_by().values("plan").annotate(number=Count("pk"))
    rows = Plan.objects.annotate(count=Coalesce(Subquery(own.values("number")), 0))
    if query:
        rows = rows.filter(name__startswith=query)
    found = listing(request, rows, name="name", order="name")
    return render(request, place, "console/settings_plans.html", {"listing": found, "rows": _rows(found.items)})


@page("settings/plans/new", "plan-new", at=At.PLATFORM, post=True)
def new(request: HttpRequest, place: Place) -> HttpResponse:
    form = NewPlanForm(posted(request))
    if request.method == "POST" and form.carry_out(lambda said: plans.create(place.actor, said["name"], form.limits())):
        messages.success(request, f"The plan {form.result} is made. An account’s own page puts it on the plan.")
        return HttpResponseRedirect(place.url("plans"))
    context = {
        "form": form,
        "title": "Make a plan",
        "text": "Limits that many accounts share. A field left empty is no limit.",
        "button": "Make the plan",
        "list": "plans",
        "list_title": "Plans",
    }
    return render(request, place, "console/form_page.html", context)


@page("settings/plans/<slug:name>/change", "plan", at=At.PLATFORM, post=True)
def change(request: HttpRequest, place: Place, name: str) -> HttpResponse:
    plan = plans.find(name)
    form = PlanForm(plan, posted(request))
    if request.method == "POST" and form.carry_out(lambda said: plans.change(place.actor, plan, form.limits())):
        messages.success(request, f"The limits of the plan {plan} are set.")
        return HttpResponseRedirect(place.url("plans"))
    many = counted(plan.tenants.count(), "account")
    context = {
        "form": form,
        "title": f"The plan {plan}",
        "text": f"It is the plan of {many}. Its limits hold from the next request on, where an account has none of "
        "its own. A field left empty is no limit.",
        "button": "Set the limits",
        "list": "plans",
        "list_title": "Plans",
        "delete": place.url("plan-delete", plan.name),
    }
    return render(request, place, "console/form_page.html", context)


@page("settings/plans/<slug:name>/delete", "plan-delete", at=At.PLATFORM, post=True)
def delete(request: HttpRequest, place: Place, name: str) -> HttpResponse:
    plan = plans.find(name)
    accounts, prices = plan.tenants.count(), plan.prices.count()
    effects = ["Nobody is on it: nothing else changes."]
    if accounts or prices:
        effects = [
            f"{counted(accounts, 'account')} and {counted(prices, 'price')} belong to it, so it cannot be deleted: "
            "put the accounts on another plan first. Prices stay on record for ever."
        ]
    return confirm(
        request,
        place,
        lambda: plans.delete(place.actor, plan),
        title=f"Delete the plan {plan}?",
        effects=effects,
        button="Delete it",
        done=f"The plan {plan} is deleted.",
        back=place.url("plans"),
    )


def _rows(found: list[Any]) -> list[tuple[Any, list[str]]]:
    """Each plan and its limits in words."""
    return [
        (
            plan,
            [
                f"{WORDS[name].title}: {WORDS[name].text(value)}"
                for name in names_for(Plan)
                if (value := getattr(plan, name)) is not None
            ],
        )
        for plan in found
    ]
