"""One document of everything that is served: valid, complete, with examples that its own schemas accept."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from django.test import Client
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel

from gateway.api.openapi import TAGS
from gateway.api.openapi_answers import EXAMPLES
from gateway.api_paths import is_api
from tests.gateway.test_routes import ROUTES

UNDESCRIBED = {"GET /api/openapi.json": "the document itself"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    first, second = (Client().get("/api/openapi.json").json() for _ in range(2))
    assert first == second
    return first


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_a_validator_accepts_it(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert [f"{error.json_path}: {error.message}" for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_every_route_is_in_it_and_nothing_else(document: dict[str, Any]) -> None:
    def plain(route: str) -> str:
        return re.sub(r"\{[^}]*:([^}]*)\}", r"{\1}", route)

    served = {plain(route) for route in ROUTES if is_api(route.split()[1]) or route.endswith("/health")}
    assert {f"{method} {path}" for method, path, _ in operations(document)} == served - UNDESCRIBED.keys()


def test_every_operation_says_what_it_is_who_may_and_how_it_refuses(document: dict[str, Any]) -> None:
    names, lacking = set(), []
    for method, path, operation in operations(document):
        names.add(operation["operationId"])
        responses = set(operation["responses"])
        if not operation.get("summary") or not operation["tags"]:
            lacking.append(f"{method} {path}: summary or tag")
        if operation["security"] and not {"400", "401", "403", "404", "500", "503"} <= responses:
            lacking.append(f"{method} {path}: errors")
        if operation["security"] and method != "GET" and not {"409", "413"} <= responses:
            lacking.append(f"{method} {path}: errors of changes")
        if not operation["security"] and path != "/health":
            lacking.append(f"{method} {path}: security")
        for tag in operation["tags"]:
            if tag not in TAGS and not tag.startswith("operators: "):
                lacking.append(f"{method} {path}: tag {tag} is not described")
    assert lacking == []
    assert len(names) == len(list(operations(document)))


def test_every_change_can_be_made_once(document: dict[str, Any]) -> None:
    reference = {"$ref": "#/components/parameters/IdempotencyKey"}
    without = {
        f"{method} {path}"
        for method, path, operation in operations(document)
        if method != "GET" and reference not in operation.get("parameters", [])
    }
    assert without == {"POST /v1/chat/completions", "POST /v1/completions", "POST /api/ws-tickets"}


def test_every_body_has_an_example_that_its_schema_accepts(document: dict[str, Any]) -> None:
    wrong = []
    for method, path, operation in operations(document):
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            if kind == "application/octet-stream":
                continue
            schema = content["schema"]
            resolved = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
            examples = [*resolved.get("examples", []), *([resolved["example"]] if "example" in resolved else [])]
            if not examples:
                wrong.append(f"{method} {path} has no example")
            judge = jsonschema.Draft202012Validator(resolved | {"components": document["components"]})
            wrong += [f"{method} {path}: {e.message}" for example in examples for e in judge.iter_errors(example)]
    assert wrong == []


def test_both_kinds_of_keys_are_in_it(document: dict[str, Any]) -> None:
    assert set(document["components"]["securitySchemes"]) == {"inference", "manage", "session", "operator"}
    by_path = {f"{method} {path}": operation["security"] for method, path, operation in operations(document)}
    assert by_path["POST /v1/chat/completions"] == [{"inference": []}]
    assert by_path["GET /api/keys"] == [{"manage": []}, {"session": []}]
    assert by_path["GET /api/operator/tenants"] == [{"operator": []}, {"session": []}]
    used = {tag for _, _, operation in operations(document) for tag in operation["tags"]}
    assert used == {tag["name"] for tag in document["tags"]}
    assert document["servers"] == [{"url": "/", "description": "This installation"}]


def test_answers_have_their_headers(document: dict[str, Any]) -> None:
    known = document["components"]["headers"]
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= known.keys()
    refused = document["components"]["responses"]
    for status in ("429", "503"):
        assert refused[status]["headers"]["retry-after"] == {"$ref": "#/components/headers/retry-after"}
    lacking = []
    for method, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            resolved = refused[status] if "$ref" in answer else answer
            named = set(resolved.get("headers", {}))
            wanted = {"x-request-id"} if status != "101" and is_api(path) else set()
            if path.startswith("/v1/") and status == "200":
                wanted |= {name for name in known if name.startswith("x-ratelimit-")}
            if not wanted <= named:
                lacking.append(f"{method} {path}: {status}")
    assert lacking == []


def test_examples_of_answers_are_what_their_schemas_accept(document: dict[str, Any]) -> None:
    used, wrong = set(), []
    for method, path, operation in operations(document):
        content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
        if "example" not in content:
            continue
        judge = jsonschema.Draft202012Validator(content["schema"] | {"components": document["components"]})
        wrong += [f"{method} {path}: {error.message}" for error in judge.iter_errors(content["example"])]
        listed = content["example"].get("data", [])
        used |= {name for name, each in EXAMPLES.items() if each == content["example"] or each in listed}
    assert wrong == []
    assert used == EXAMPLES.keys()


def test_no_two_models_share_a_name(document: dict[str, Any]) -> None:
    """The one would be described as the other."""
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    names = Counter(model.__name__ for model in _models(BaseModel) if model.__module__.startswith("gateway."))
    assert {name for name, count in names.items() if count > 1} & referred == set()


def _models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)
