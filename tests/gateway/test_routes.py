"""No route without its stranger: every URL of Django, ninja and the streams, against the table in ``routes.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from gateway import asgi
from gateway.api import api
from gateway.api_paths import is_api
from tenants.models import ApiKey, Plan, Tenant
from tests.gateway.house import Process
from tests.gateway.routes import OPEN, STRANGERS

PROJECT = Path(__file__).resolve().parents[2]
OPERATORS = "/api/operator/"


def routes() -> set[str]:
    return {*_operations(), *_pages(get_resolver(), "/"), *_streams()}


def _operations() -> Iterator[str]:
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                whole = re.sub("/+", "/", f"/{router.prefix}/{path}").rstrip("/") or "/"
                yield from (f"{method} {whole}" for method in operation.methods)


def _pages(resolver: URLResolver, prefix: str) -> Iterator[str]:
    """What ninja does not serve; Django's admin and the console, whose pages have tests of their own, as one each."""
    for pattern in resolver.url_patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern) or pattern.namespace in {"admin", "console"}:
            yield f"GET {path}"
        elif pattern.namespace == api.urls_namespace:
            yield f"GET {api.openapi_url}"
        else:
            yield from _pages(pattern, path)


def _streams() -> Iterator[str]:
    yield from (f"POST {path}" for path in asgi._streams)
    yield from (f"GET {path}" for path in asgi._sockets)


ROUTES = sorted(routes())


def test_every_route_has_its_stranger() -> None:
    wanted = {route for route in ROUTES if OPERATORS not in route} - OPEN.keys()
    assert wanted - STRANGERS.keys() == set(), "these routes have no stranger test in tests/gateway/routes.py"
    assert STRANGERS.keys() - wanted == set(), "these entries of tests/gateway/routes.py have no route"
    assert OPEN.keys() - set(ROUTES) == set()


@pytest.mark.parametrize("test", sorted(set(STRANGERS.values())))
def test_every_stranger_test_exists(test: str) -> None:
    file, _, name = test.partition("::")
    parsed = ast.parse((PROJECT / file).read_text())
    found = [node.name for node in parsed.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert name in found


def _address(route: str) -> tuple[str, str]:
    """Its method and a path that could exist."""
    method, path = route.split()
    return method, re.sub(r"\{[^}]*\}|<[^>]*>", "01890000-0000-7000-8000-000000000000", path)


async def test_nothing_is_served_to_nobody(gateway: Process) -> None:
    served = []
    async with aiohttp.ClientSession() as session:
        for route in ROUTES:
            method, path = _address(route)
            if route in OPEN or not is_api(path) or path in asgi._sockets:  # sockets: test_sockets.py
                continue
            async with session.request(method, gateway.url + path, json={} if method != "GET" else None) as answer:
                if (answer.status, (await answer.json())["error"]["code"]) != (401, "invalid_api_key"):
                    served.append((route, answer.status))
    assert served == []


def test_operators_routes_are_closed_to_tenants(transactional_db: None) -> None:
    plan = Plan.objects.create(name="tests")
    _, secret = ApiKey.issue(Tenant.objects.create(slug="acme", display_name="Acme", plan=plan), scope="manage")
    opened = []
    for route in ROUTES:
        method, path = _address(route)
        if path.startswith(OPERATORS):
            headers = {"Authorization": f"Bearer {secret.reveal()}"}
            status = Client().generic(method, path, b"{}", "application/json", headers=headers).status_code
            opened += [] if status == 401 else [(route, status)]
    assert opened == []
