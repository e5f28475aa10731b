from __future__ import annotations

from typing import cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import F
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console.errors import answer
from console.listing import listing, searched
from console.place import TENANT_PREFIX
from console.render import render
from tenants import roster
from tenants.errors import Invalid
from tenants.models import Tenant


@never_cache
@login_required
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """To where the signed-in person works: operators to the platform, members to their account; who is in several
    chooses.
    """
    user = cast(User, request.user)
    if user.is_staff:
        return HttpResponseRedirect(reverse("console:overview"))
    mine = Tenant.objects.filter(members__user=user).annotate(role=F("members__role"))
    active = list(mine.filter(state=Tenant.State.ACTIVE)[:2])
    if len(active) == 1:
        return HttpResponseRedirect(reverse(f"console:{TENANT_PREFIX}overview", args=(active[0].slug,)))
    try:
        shown = listing(request, roster.named(mine, searched(request)), name="slug", order="slug")
    except Invalid as error:
        return answer(request, None, error)
    return render(request, None, "console/home.html", {"listing": shown})
