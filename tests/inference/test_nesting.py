"""JSON that is nested deeper than Python can walk through is refused where it is read, and names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import InvalidRequest
from inference.front.bodies import generate_body, load_object
from inference.front.errors import ApiError
from inference.nesting import MAX_NESTING, check_shape, is_too_deep


def _nested(depth: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"items": value, "a": 1}
    return value


@pytest.mark.parametrize("kind", ["list", "object"])
def test_the_bound_is_exact(kind: str) -> None:
    assert not is_too_deep(_nested(MAX_NESTING, kind))
    assert is_too_deep(_nested(MAX_NESTING + 1, kind))
    assert is_too_deep([1, _nested(MAX_NESTING, kind), 2])
    check_shape({"a": _nested(MAX_NESTING - 1, kind), "b": "[" * 5000})
    with pytest.raises(InvalidRequest) as caught:
        check_shape({"a": 1, "b": _nested(MAX_NESTING, kind)})
    assert caught.value.param == "b"


def test_ever_deeper_and_flat_values_are_told_apart() -> None:
    assert is_too_deep(_nested(5000))
    assert not is_too_deep([[number] for number in range(5000)])
    assert not is_too_deep("text")
    assert not is_too_deep({})


@pytest.mark.parametrize("depth", [MAX_NESTING, 900])
@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("response_format", '{"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": ', "}}}"),
        ("tools", '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "const": ', "}}}]"),
        ("structured_outputs", '{"json": {"const": ', "}}"),
        ("messages", "", ""),
        ("unknown", "", ""),
    ],
)
def test_bodies_name_the_field(field: str, before: str, after: str, depth: int) -> None:
    raw = f'{{"model": "m", "messages": [], "{field}": {before}{json.dumps(_nested(depth))}{after}}}'
    with pytest.raises(ApiError) as caught:
        generate_body(raw.encode(), chat=True)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_json", field)


def test_what_is_too_deep_for_the_parser_is_no_json() -> None:
    with pytest.raises(ApiError) as caught:
        load_object(b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}")
    assert caught.value.code == "invalid_json"
