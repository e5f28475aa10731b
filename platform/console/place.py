"""Where somebody stands in the console: at the platform's own pages, which are operators', or at one tenant's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse

from tenants import provisioning
from tenants.actors import Actor
from tenants.addresses import address_of
from tenants.callers import Caller, Operator, Role
from tenants.errors import Forbidden, NotFound
from tenants.signed_in import caller_of_user, operator_of_user

if TYPE_CHECKING:
    from tenants.models import Tenant
    from tenants.scope import TenantOwned

TENANT_PREFIX = "tenant-"
"""Of the name of a page's route at a tenant; at the platform the page's name is the route's."""


@dataclass(frozen=True, slots=True)
class Place:
    """A signed-in person at a page.

    :param operator: set for operators, wherever they are.
    :param caller: who they are for the tenant whose page it is: a member, or an operator with an owner's rights whose
        changes the audit log keeps under the operator's name. ``None`` at the platform's own pages.
    """

    user: User
    operator: Operator | None
    caller: Caller | None

    @property
    def tenant(self) -> Tenant | None:
        return None if self.caller is None else self.caller.tenant

    @property
    def actor(self) -> Actor:
        found = self.caller or self.operator
        assert found is not None
        return found.actor

    def may(self, role: Role) -> bool:
        """Whether they may do here what needs this role. At the platform's pages an operator may everything."""
        if self.caller is None:
            return True
        try:
            self.caller.require(role)
        except Forbidden:
            return False
        return True

    def rows(self, model: type[TenantOwned]) -> Any:
        """The rows of a tenant-owned model that are this place's: the tenant's, or everybody's at the platform."""
        if self.caller is None:
            return model.objects.unscoped()
        return model.objects.filter(**{model.tenant_path: self.caller.tenant})

    def url(self, name: str, *args: Any) -> str:
        """The address of a page here. :param name: as the page was registered."""
        if self.caller is None:
            return reverse(f"console:{name}", args=args)
        return reverse(f"console:{TENANT_PREFIX}{name}", args=(self.caller.tenant.slug, *args))


@dataclass(frozen=True, slots=True)
class TenantPlace(Place):
    """At one tenant's pages: what every view of a page that is there alone (``at=At.TENANT``) is given."""

    caller: Caller

    @property
    def tenant(self) -> Tenant:
        return self.caller.tenant


def place_of(request: HttpRequest, slug: str | None) -> Place:
    """Where the signed-in user of ``request`` is: at the tenant ``slug``, or without one at the platform.

    Raises :class:`~tenants.errors.NotFound` for whoever has no business there, as for a page that does not exist, and
    :class:`~tenants.errors.Suspended` for members of a suspended tenant.
    """
    user, address = request.user, address_of(request)
    assert isinstance(user, User)
    if user.is_staff:
        return operators_place(user, address, None if slug is None else provisioning.find(slug))
    if slug is None:
        raise NotFound("page", request.path)
    return TenantPlace(user, None, caller_of_user(user, slug, address))


def operators_place(user: User, address: str | None, tenant: Tenant | None) -> Place:
    """At a tenant, or without one at the platform. Raises :class:`~tenants.errors.Forbidden` for who is no operator."""
    operator = operator_of_user(user, address)
    if tenant is None:
        return Place(user, operator, None)
    return TenantPlace(user, operator, Caller(operator.name, tenant, Role.OWNER, operator.actor, user=user))
