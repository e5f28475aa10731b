"""What every operation has in common with its query and its body: misspelt parameters, bodies that are left out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from gateway.api import api
from tests.gateway.api.conftest import Caller, Make
from tests.gateway.api.test_management import error

VALUES = {"number": "1", "request_id": "0192f0c1-2a7b-7c3d-8e4f-5a6b7c8d9e0f"}


def document() -> dict[str, Any]:
    return api.get_openapi_schema()  # type: ignore[no-any-return]


def paths(method: str) -> list[str]:
    return [path for path, operations in document()["paths"].items() if method in operations and "/v1/" not in path]


def filled(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda found: VALUES.get(found[1], "acme" if found[1] == "tenant" else "nope"), path)


@pytest.fixture
def ask(caller: Make, operator: Caller) -> Any:
    """Who may ask for a path."""
    owner = caller("owner")
    return lambda path: operator if path.startswith("/api/operator/") else owner


def test_an_unknown_parameter_is_refused_by_name(ask: Any) -> None:
    asked = [path for path in paths("get") if path.startswith("/api/") and "{" not in path]
    assert len(asked) > 25
    for path in asked:
        answer = ask(path).get(f"{path}?tennant=acme")
        found = error(answer, 400)
        assert (found["param"], found["code"]) == ("tennant", "unknown_parameter"), path


def test_parameters_that_there_are_still_work(caller: Make) -> None:
    asking = caller()
    for path in (
        "/api/requests?from=2030-01-01T00:00:00Z&limit=3",
        "/api/usage?by=model&by=key",
        "/api/keys?scope=manage",
    ):
        assert asking.get(path).status_code == 200, path
    assert Client().get("/healthz?probe=1").status_code != 400


@pytest.mark.parametrize("what", ["audit", "requests", "ledger", "denials", "usage"])
def test_a_filter_by_a_tenant_that_is_none(what: str, operator: Caller, caller: Make) -> None:
    assert operator.get(f"/api/operator/{what}?tenant=nope").status_code == 404
    assert error(operator.get(f"/api/operator/{what}?tenant=nope"), 404)["param"] == "tenant"
    caller()
    assert operator.get(f"/api/operator/{what}?tenant=acme").status_code == 200


def test_every_post_without_a_body(ask: Any) -> None:
    """Where no field is required it is as if {} had been sent; elsewhere the answer says what is missing."""
    schemas, optional = document()["components"]["schemas"], []
    for path in paths("post"):
        body = document()["paths"][path]["post"].get("requestBody", {}).get("content", {}).get("application/json")
        if path == "/api/ws-tickets":  # asynchronous, without a body, and for a running gateway
            continue
        asking = ask(path)
        answer = asking._call("post", filled(path), "")
        words = answer.json()["error"]["message"] if answer.status_code >= 400 else ""
        assert answer.status_code < 500, path
        assert "None" not in words, path
        if body is None:
            continue
        schema = schemas[body["schema"]["$ref"].rpartition("/")[2]] if "$ref" in body["schema"] else body["schema"]
        needed = schema.get("required") or document()["paths"][path]["post"]["requestBody"].get("required")
        assert (words == "A JSON body is required.") == bool(needed), (path, words)
        if not needed:
            optional.append(path.rpartition("/")[2])
    assert {"keys", "rotate", "promote", "rotate-secret", "suspend", "resume", "reconciliations"} <= set(optional)


@pytest.mark.parametrize(
    ("field", "value"),
    [("models", [0] * 400_000), ("limits", {f"n{number}": 0 for number in range(200_000)}), ("name", [[0]] * 300_000)],
)
def test_a_body_of_very_many_values_is_refused_before_they_are_looked_at(
    field: str, value: Any, caller: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pydantic would make an error of each: half a second for a megabyte, in which nobody else gets on."""
    owner = caller()
    made: list[int] = []
    monkeypatch.setattr("gateway.api.error_of_validation", lambda details: made.append(len(details)))
    found = error(owner.post("/api/keys", {field: value}), 400)
    assert (found["param"], found["code"]) == (field, "invalid_json")
    assert found["message"] == f"{field}: the body holds more than 16384 values."
    assert made == []


def test_a_body_nested_too_deep_is_named(caller: Make) -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    found = error(caller().post("/api/keys", {"models": deep}), 400)
    assert (found["param"], found["code"]) == ("models", "invalid_json")


def test_a_body_of_another_type(caller: Make) -> None:
    owner = caller()
    assert error(owner.post("/api/keys", [1]), 400)["message"] == "The body has to be a JSON object."
    found = error(owner.post("/api/keys", {"limits": 5}), 400)
    assert (found["message"], found["param"]) == ("limits has to be a JSON object.", "limits")


def test_what_is_not_there_is_named(caller: Make, operator: Caller) -> None:
    owner = caller()
    for asking, path, param in (
        (owner, "/api/keys/nope", "key_id"),
        (owner, "/api/members/nope", "member_id"),
        (owner, "/api/invitations/nope", "invitation_id"),
        (owner, "/api/webhooks/nope", "webhook_id"),
        (owner, "/api/requests/nope", "request_id"),
        (owner, "/api/keys?member=nope", "member"),
        (operator, "/api/operator/tenants/nope", "tenant"),
        (operator, "/api/operator/tenants/nope/keys", "tenant"),
        (operator, "/api/operator/tenants/acme/keys/nope", "key_id"),
        (operator, "/api/operator/plans/nope", "name"),
        (operator, "/api/operator/models/nope", "name"),
        (operator, "/api/operator/workers/nope", "name"),
    ):
        assert error(asking.get(path), 404)["param"] == param, path
    assert error(owner.post("/api/keys", {"member": "nobody"}), 404)["param"] == "member"
