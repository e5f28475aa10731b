"""What a tenant's own people may do, an operator may do for them: the same operations under the tenant's path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.http import HttpRequest
from ninja import Router
from ninja.constants import NOT_SET

from gateway.api.callers import OperatorBearer, TenantKey
from tenants import provisioning
from tenants.callers import Caller, Role

_TENANTS = "/api/"
_OPERATORS = "/api/operator/tenants/{tenant}/"
_PARAMETER = {
    "name": "tenant",
    "in": "path",
    "required": True,
    "description": "the tenant's short name",
    "schema": {"type": "string"},
}


class ActingOperator(OperatorBearer):
    """An operator, for the tenant that the path names, as an owner of it would be; suspended or not.

    ``request.auth`` is a :class:`~tenants.callers.Caller` whose actor is the operator, so the audit log tells the two
    apart. Raises :class:`~tenants.errors.NotFound` for an unknown tenant, to operators only.
    """

    def __call__(self, request: HttpRequest) -> Any:
        operator = super().__call__(request)
        assert request.resolver_match is not None
        tenant = provisioning.find(request.resolver_match.kwargs["tenant"])
        return Caller(operator.name, tenant, Role.OWNER, operator.actor, user=operator.user)


def acting(routers: Iterable[Router]) -> Iterator[Router]:
    """For each router with operations for a tenant's manage key, another one that has them for operators.

    ``/api/keys/{public_id}`` becomes ``/api/operator/tenants/{tenant}/keys/{public_id}``.
    """
    for router in routers:
        found = _acting(router)
        if found.path_operations:
            yield found


def _acting(router: Router) -> Router:
    mounted = Router(tags=[f"operators: {tag}" for tag in router.tags or []])
    for decorator, mode in router._decorators:
        mounted.add_decorator(decorator, mode=mode)
    for path, view in router.path_operations.items():
        if not path.startswith(_TENANTS):
            continue
        copy = view.clone()
        copy.operations = [operation for operation in copy.operations if _for_tenants(operation, router)]
        for operation in copy.operations:
            name = f"operator_{operation.view_func.__module__.rpartition('.')[2]}_{operation.view_func.__name__}"
            operation.auth_param, operation.auth_callbacks = None, [ActingOperator()]
            operation.operation_id = operation.url_name = name
            operation.tags = mounted.tags
            operation.openapi_extra = _with_tenant(operation.openapi_extra)
        if copy.operations:
            mounted.path_operations[_OPERATORS + path.removeprefix(_TENANTS)] = copy
    return mounted


def _for_tenants(operation: Any, router: Router) -> bool:
    auth = router.auth if operation.auth_param is NOT_SET else operation.auth_param
    doors = auth if isinstance(auth, list | tuple) else [auth]
    return any(isinstance(door, TenantKey) for door in doors)


def _with_tenant(extra: dict[str, Any] | None) -> dict[str, Any]:
    extra = dict(extra or {})
    return extra | {"parameters": [*extra.get("parameters", []), _PARAMETER]}
