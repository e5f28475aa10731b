"""The operators' part of the OpenAPI document."""

from __future__ import annotations

import re

from gateway.api import api


def test_every_operators_operation_is_described() -> None:
    document = api.get_openapi_schema()
    ids = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            ids.append(operation["operationId"])
            if "/operator/" not in path:
                continue
            assert operation["summary"], (method, path)
            given = [each["name"] for each in operation.get("parameters", []) if each.get("in") == "path"]
            assert sorted(given) == sorted(re.findall(r"\{(?:\w+:)?(\w+)\}", path)), (method, path)
    assert len(ids) == len(set(ids)), sorted({each for each in ids if ids.count(each) > 1})
