"""Every endpoint that does not stream, one router a resource, and the one OpenAPI document of them all."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from ninja import NinjaAPI, Router
from ninja.errors import HttpError
from ninja.errors import ValidationError as NinjaValidationError

from gateway.api import (
    adapters,
    audit,
    batches,
    comparisons,
    denials,
    files,
    health,
    invitations,
    keys,
    limits,
    members,
    metrics,
    models,
    operator,
    payloads,
    playground,
    releases,
    requests,
    tickets,
    uploads,
    usage,
    webhooks,
)
from gateway.api.openapi import complete
from gateway.api.queries import refuse_unknown
from gateway.api.reading import Reader
from gateway.errors import ApiError, bad_request, error_of
from gateway.parsing import error_of_validation
from tenants.errors import NotFound

_UNCHECKED = (health.router, metrics.router)
"""Probes and scrapers add parameters of their own."""


class Api(NinjaAPI):
    def __init__(self, **kwargs: Any) -> None:
        self.added: list[Router] = []
        self._document: dict[str, Any] | None = None
        super().__init__(**kwargs)

    def add_router(self, prefix: str, router: Router, **kwargs: Any) -> None:  # type: ignore[override]
        if router not in _UNCHECKED:
            refuse_unknown(router)
        super().add_router(prefix, router, **kwargs)
        self.added.append(router)

    def get_openapi_schema(self, *args: Any, **kwargs: Any) -> Any:
        """The whole document. Made once: anybody may ask for it."""
        if self._document is None:
            self._document = complete(super().get_openapi_schema(*args, **kwargs))
        return self._document


api = Api(
    title="loraplex",
    version="0.1.0",
    description="One base model, many tenants' LoRA adapters. OpenAI's endpoints work with OpenAI's clients.",
    openapi_url="/api/openapi.json",
    docs_url=None,
    urls_namespace="api",
    parser=Reader(),
)
api.add_router("", models.router)
api.add_router("", tickets.router)
api.add_router("", playground.router)
api.add_router("", files.router)
api.add_router("", batches.router)
api.add_router("", usage.router)
api.add_router("", requests.router)
api.add_router("", denials.router)
api.add_router("", payloads.router)
api.add_router("", limits.router)
api.add_router("", audit.router)
api.add_router("", webhooks.router)
api.add_router("", adapters.router)
api.add_router("", comparisons.router)
api.add_router("", uploads.router)
api.add_router("", releases.router)
api.add_router("", keys.router)
api.add_router("", health.router)
api.add_router("", members.router)
api.add_router("", invitations.router)

# Last, because an operator may do for a tenant what stands above.
for _router in (*operator.routers, *operator.acting(tuple(api.added))):
    api.add_router("", _router)
api.add_router("", metrics.router)


def _respond(error: ApiError) -> HttpResponse:
    response = HttpResponse(error.payload(), status=error.status, content_type="application/json")
    for name, value in error.all_headers().items():
        response[name] = value
    return response


@api.exception_handler(Exception)
def _any(request: HttpRequest, error: Exception) -> HttpResponse:
    found = error_of(error)
    if isinstance(error, NotFound) and error.param is None:
        found.param = _param_of(request, error.name)
    return _respond(found)


def _param_of(request: HttpRequest, value: str) -> str | None:
    """The parameter, of the path or else of the query, that named what is not there."""
    path = {} if request.resolver_match is None else request.resolver_match.kwargs
    named = [*path.items(), *request.GET.items()]
    return next((name for name, given in named if str(given) == value), None)


@api.exception_handler(NinjaValidationError)
def _invalid(request: HttpRequest, error: NinjaValidationError) -> HttpResponse:
    if any(
        detail["type"] == "missing" and tuple(detail["loc"])[:1] == ("body",) and len(detail["loc"]) <= 2
        for detail in error.errors
    ):
        return _respond(bad_request("A JSON body is required.", code="missing_required_parameter"))
    details = [{**detail, "loc": _own_path(tuple(detail["loc"]))} for detail in error.errors]
    return _respond(error_of_validation(details))  # type: ignore[arg-type]


def _own_path(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """ninja puts "query" before a field's own path, or "body" and the argument's name; a list in a query gets both."""
    named = loc[0] == "body" or (len(loc) > 2 and isinstance(loc[2], str))
    return loc[2 if named else 1 :]


@api.exception_handler(MultiPartParserError)
@api.exception_handler(SuspiciousOperation)
def _malformed(request: HttpRequest, error: Exception) -> HttpResponse:
    """Django's own, of a form that it cannot read; it looks for one also where a session's token is checked."""
    return _respond(bad_request("The body is not well-formed multipart/form-data.", code="invalid_form"))


@api.exception_handler(HttpError)
def _refused(request: HttpRequest, error: HttpError) -> HttpResponse:
    """ninja's own: a body that is no JSON, or what its reader said of it."""
    if isinstance(error.__cause__, ApiError):
        return _respond(error.__cause__)
    code = "invalid_json" if error.status_code == 400 else None
    return _respond(ApiError(error.status_code, code, "The body is not valid JSON." if code else str(error)))
