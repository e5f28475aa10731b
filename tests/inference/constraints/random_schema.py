"""Random JSON schemas of the kinds that people write."""

from __future__ import annotations

from random import Random
from typing import Any

PATTERNS = ("^[a-z]{2,5}$", "^(red|green)-[0-9]+$", "ab?c", "^\\d{4}$")


def random_schema(draw: Random, depth: int = 3) -> dict[str, Any]:
    schema = _schema(draw, depth)
    if draw.random() < 0.4:
        node: dict[str, Any] = {
            "type": "object",
            "properties": {"value": _scalar(draw), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["value"],
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "properties": {"list": {"$ref": "#/$defs/node"}, "rest": schema},
            "required": ["list", "rest"],
            "additionalProperties": False,
            "$defs": {"node": node},
        }
    return schema


def _schema(draw: Random, depth: int) -> dict[str, Any]:
    if depth == 0:
        return _scalar(draw)
    return draw.choice([_object, _object, _array, lambda d, _: _scalar(d), _any_of])(draw, depth)


def _object(draw: Random, depth: int) -> dict[str, Any]:
    names = draw.sample(["name", "age", "x y", "naïve", "tags", "a"], draw.randint(0, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "title": "a title",
        "properties": {name: _schema(draw, depth - 1) for name in names},
        "required": [name for name in names if draw.random() < 0.6],
        "additionalProperties": draw.choice([False, False, {"type": "boolean"}]),
    }
    return schema


def _array(draw: Random, depth: int) -> dict[str, Any]:
    least = draw.randint(0, 2)
    schema = {
        "type": "array",
        "items": _schema(draw, depth - 1),
        "minItems": least,
        "maxItems": least + draw.randint(0, 3),
    }
    if draw.random() < 0.2:
        schema["prefixItems"] = [_scalar(draw)]
    return schema


def _any_of(draw: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}


def _scalar(draw: Random) -> dict[str, Any]:
    low = draw.randint(-50, 50)
    return draw.choice(
        [
            {"type": "string", "minLength": draw.randint(0, 2), "maxLength": draw.randint(2, 8)},
            {"type": "string", "pattern": draw.choice(PATTERNS), "maxLength": 20},
            {"type": "string", "format": draw.choice(["date", "ipv4", "uuid", "time"])},
            {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 200)},
            {"type": "integer", "exclusiveMinimum": low, "maximum": low + 1 + draw.randint(0, 200)},
            {"type": "number", "minimum": low, "maximum": low + 0.5 + draw.random()},
            {"type": "integer", "multipleOf": draw.randint(2, 7), "minimum": 0, "maximum": 99},
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["string", "null"], "maxLength": 4},
            {"enum": draw.sample(["red", 1, None, True, "grün", {"k": [1, "v"]}, 2.5], 3)},
            {"const": draw.choice(['fixed\n"text"', 7, {"a": None}])},
        ]
    )
