from __future__ import annotations

from typing import Any

from django.db.models import Count
from django.http import HttpRequest, HttpResponse

from console.limit_words import quotas, row
from console.pages import At, page
from console.place import TenantPlace
from console.render import render
from tenants import adapter_shares
from tenants.callers import Role
from tenants.models import Member, ModelAllowance, Tenant
from tenants.standing import standing

_SHOWN = 5
"""Names of adapters and owners on the page itself."""


@page("account", "account", at=At.TENANT)
def account(request: HttpRequest, place: TenantPlace) -> HttpResponse:
    """The tenant's own page; for an operator too, who can change it."""
    tenant = place.tenant
    now = _now(tenant)
    if request.headers.get("HX-Target") == "standing":
        return render(request, place, "console/account_standing.html", now)
    owners = Member.objects.filter(tenant=tenant, role=Role.OWNER).select_related("user").order_by("pk")
    shared = adapter_shares.received(tenant).order_by("model")
    context = {
        "quotas": quotas(tenant),
        "models": ModelAllowance.objects.filter(tenant=tenant)
        .select_related("base_model")
        .order_by("base_model__name"),
        "received": list(shared[:_SHOWN]),
        "more_received": max(shared.count() - _SHOWN, 0),
        "owners": list(owners[:_SHOWN]),
        "counts": _counts(tenant),
    }
    return render(request, place, "console/account.html", now | context)


def _now(tenant: Tenant) -> dict[str, Any]:
    """What changes with every request of the tenant."""
    found = standing(tenant)[0]
    own = tenant.own_limits()
    rows = [row(name, at, "plan" if own[name] is None else "own") for name, at in found["limits"].items()]
    running = tenant.requests.running().count()
    return {"limits": rows, "sums": found, "running": running}


def _counts(tenant: Tenant) -> dict[str, Any]:
    roles = dict(Member.objects.filter(tenant=tenant).values_list("role").annotate(count=Count("*")))
    return {
        "members": sum(roles.values()),
        "roles": [(str(role), roles[role]) for role in reversed(Role) if role in roles],
        "keys": tenant.api_keys.working().count(),
        "adapters": tenant.adapters.count(),
    }
