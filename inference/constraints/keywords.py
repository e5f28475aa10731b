"""Which keywords of a JSON schema are enforced; anything else is refused by name, never silently ignored."""

from __future__ import annotations

from typing import Any

from inference.errors import InvalidRequest

MAX_DEPTH = 64

# fmt: off
ENFORCED = frozenset(
    (
        "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
        "minLength", "maxLength", "pattern", "format", "items", "prefixItems", "additionalItems", "minItems",
        "maxItems", "properties", "required", "additionalProperties", "patternProperties", "minProperties",
        "maxProperties", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions",
    )
)
ANNOTATIONS = frozenset(
    (
        "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema",
        "$id", "$anchor",
    )
)
# fmt: on
_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")
_OF_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_OF_ONE = ("items", "additionalItems", "additionalProperties")


def check_keywords(schema: Any, field: str) -> None:
    """Raises :class:`InvalidRequest` that names the keyword and its place.

    llguidance refuses what it knows and does not implement (``not``, ``if``, ``uniqueItems`` …) but passes over what
    it does not know, a misspelt ``maxLenght`` too, and lets a schema change its own settings (``x-guidance``).
    """
    _check(schema, "#", field, 0)


def _check(schema: Any, place: str, field: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{field}: {place} is not a schema", field)
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{field}: the schema is nested more than {MAX_DEPTH} deep", field)
    for keyword, value in schema.items():
        if keyword not in ENFORCED and keyword not in ANNOTATIONS:
            raise InvalidRequest(f"{field}: the keyword {keyword[:64]!r} at {place} is not supported", field)
        if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            raise InvalidRequest(f"{field}: {keyword} at {place} must be a number", field)
        if keyword in _OF_NAMES:
            for name, part in _object(value, f"{place}/{keyword}", field).items():
                _check(part, f"{place}/{keyword}/{name[:64]}", field, depth + 1)
        elif keyword in _OF_LISTS or (keyword == "items" and isinstance(value, list)):
            for number, part in enumerate(_list(value, f"{place}/{keyword}", field)):
                _check(part, f"{place}/{keyword}/{number}", field, depth + 1)
        elif keyword in _OF_ONE:
            _check(value, f"{place}/{keyword}", field, depth + 1)


def _object(value: Any, place: str, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field}: {place} must be an object", field)
    return value


def _list(value: Any, place: str, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{field}: {place} must be a list", field)
    return value
