"""The first request that a new key can send, to be pasted into a shell: written as the playground writes its own
(``code.js``), but here, so that the page needs no script.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from django.http import HttpRequest

from tenants.links import address_of_page
from tenants.models import ApiKey
from tenants.restrictions import names_of

_KEY = '-H "Authorization: Bearer $LORAPLEX_API_KEY"'


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """:param base_url: where clients send the key. :param curl: a command; the key is in the environment."""

    base_url: str
    curl: str


def first_request(request: HttpRequest, key: ApiKey) -> FirstRequest:
    """:param request: of whoever is shown it: where they reached the console, programs reach the API."""
    if key.scope == ApiKey.Scope.MANAGE:
        base_url = address_of_page("/api", request)
        return FirstRequest(base_url, _command([shlex.quote(f"{base_url}/limits"), _KEY]))
    base_url, model = address_of_page("/v1", request), _model(key)
    if model is None:
        return FirstRequest(base_url, _command([shlex.quote(f"{base_url}/models"), _KEY]))
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 50}
    parts = [
        shlex.quote(f"{base_url}/chat/completions"),
        _KEY,
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(body))}",
    ]
    return FirstRequest(base_url, _command(parts))


def _command(parts: list[str]) -> str:
    return "curl " + " \\\n  ".join(parts)


def _model(key: ApiKey) -> str | None:
    """One that it may use: of those that it or its member is kept to, else a base model of the account's."""
    for holder in (key, key.member):
        names = None if holder is None else names_of(holder)
        if names is not None:
            return names[0] if names else None
    allowances = key.tenant.model_allowances.select_related("base_model").order_by("base_model__name")
    allowance = allowances.first()
    return None if allowance is None else allowance.base_model.name
