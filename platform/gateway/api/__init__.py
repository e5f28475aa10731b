"""Every endpoint that does not stream, one router a resource, and the one OpenAPI document of them all."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import ValidationError as NinjaValidationError

from gateway.api import health, models, tickets, usage
from gateway.api.openapi import with_streams
from gateway.errors import ApiError, error_of
from gateway.schemas import error_of_validation


class Api(NinjaAPI):
    def get_openapi_schema(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        return with_streams(super().get_openapi_schema(*args, **kwargs))  # type: ignore[arg-type]


api = Api(
    title="loraplex",
    version="0.1.0",
    description="One base model, many tenants' LoRA adapters. OpenAI's endpoints work with OpenAI's clients.",
    openapi_url="/api/openapi.json",
    docs_url=None,
    urls_namespace="api",
)
api.add_router("", models.router)
api.add_router("", tickets.router)
api.add_router("", usage.router)
api.add_router("", health.router)


def _respond(error: ApiError) -> HttpResponse:
    response = HttpResponse(error.payload(), status=error.status, content_type="application/json")
    for name, value in error.all_headers().items():
        response[name] = value
    return response


@api.exception_handler(Exception)
def _any(request: HttpRequest, error: Exception) -> HttpResponse:
    return _respond(error_of(error))


@api.exception_handler(NinjaValidationError)
def _invalid(request: HttpRequest, error: NinjaValidationError) -> HttpResponse:
    # ninja puts "query" or "body" and the argument's name before the field's own path
    details = [{**detail, "loc": tuple(detail["loc"])[1:]} for detail in error.errors]
    return _respond(error_of_validation(details))  # type: ignore[arg-type]
