"""How bodies of the management API are read."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja.parser import Parser

from gateway.errors import bad_request
from inference.errors import InvalidRequest
from inference.nesting import check_shape

MOST_VALUES = 1 << 14
"""Of a body: the longest lists that it takes, of models and addresses, have a thousand. Pydantic makes an error of each
wrong value, and nobody else's request gets on in this process meanwhile."""


class Reader(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        """Raises :class:`~gateway.errors.ApiError` 400, which ninja wraps."""
        body = super().parse_body(request)  # takes lone surrogates, which checks then name the field of
        if isinstance(body, dict):
            try:
                check_shape(body, MOST_VALUES)
            except InvalidRequest as error:
                raise bad_request(f"{error}.", error.param, "invalid_json") from None
        return body
