"""What stands in a query and is no parameter is refused by name: a misspelt filter would answer with everything."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest
from ninja import Router

from gateway.errors import ApiError, bad_request

_MARK = "refuses_unknown_parameters"


def refuse_unknown(router: Router) -> None:
    """Every operation of the router then knows its query; those of one that was given before stay as they are."""
    for view in router.path_operations.values():
        for operation in view.operations:
            if not hasattr(operation.view_func, _MARK):
                operation.view_func = _refusing(operation.view_func, _names(operation), operation.is_async)


def _names(operation: Any) -> frozenset[str]:
    models = [model for model in operation.models if model.__ninja_param_source__ == "query"]
    return frozenset(name for model in models for name in model.__ninja_flatten_map__)


def _refusing(view: Callable[..., Any], names: frozenset[str], is_async: bool) -> Callable[..., Any]:
    @wraps(view)
    def run(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        _check(request, names)
        return view(request, *args, **kwargs)

    @wraps(view)
    async def run_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        _check(request, names)
        return await view(request, *args, **kwargs)

    refusing = run_async if is_async else run
    setattr(refusing, _MARK, True)
    return refusing


def _check(request: HttpRequest, names: frozenset[str]) -> None:
    """Raises :class:`~gateway.errors.ApiError` 400 for the first parameter that is none."""
    for name in request.GET:
        if name not in names:
            raise _unknown(name[:100], names)


def _unknown(name: str, names: frozenset[str]) -> ApiError:
    known = f"parameters are {', '.join(sorted(names))}" if names else "there are none here"
    return bad_request(f"Unrecognized query parameter: {name}; {known}.", name, "unknown_parameter")
