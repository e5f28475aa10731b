"""The keywords of a JSON schema: whether they are well-formed, and which of them can be enforced."""

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
_TYPES = frozenset(("null", "boolean", "object", "array", "number", "integer", "string"))
_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_COUNTS = frozenset(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"))


def check_keywords(schema: Any, field: str) -> None:
    """Raises :class:`InvalidRequest` that names the keyword and its place.

    llguidance refuses what it knows and does not implement (``not``, ``if``, ``uniqueItems`` …) but passes over what
    it does not know, a misspelt ``maxLenght`` too, and lets a schema change its own settings (``x-guidance``).
    """
    _check(schema, "#", field, 0, others=False)


def check_form(schema: Any, field: str) -> None:
    """Raises :class:`InvalidRequest` for keywords whose values are none; those that are not known here may stand.

    For schemas that are shown to a model and not enforced.
    """
    _check(schema, "#", field, 0, others=True)


def _check(schema: Any, place: str, field: str, depth: int, *, others: bool) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{field}: {place} is not a schema", field)
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"{field}: the schema is nested more than {MAX_DEPTH} deep", field)
    for keyword, value in schema.items():
        if keyword not in ENFORCED and keyword not in ANNOTATIONS:
            if others:
                continue
            raise InvalidRequest(f"{field}: the keyword {keyword[:64]!r} at {place} is not supported", field)
        _check_value(keyword, value, place, field)
        if keyword in _OF_NAMES:
            for name, part in _object(value, f"{place}/{keyword}", field).items():
                _check(part, f"{place}/{keyword}/{name[:64]}", field, depth + 1, others=others)
        elif keyword in _OF_LISTS or (keyword == "items" and isinstance(value, list)):
            for number, part in enumerate(_list(value, f"{place}/{keyword}", field)):
                _check(part, f"{place}/{keyword}/{number}", field, depth + 1, others=others)
        elif keyword in _OF_ONE:
            _check(value, f"{place}/{keyword}", field, depth + 1, others=others)


def _check_value(keyword: str, value: Any, place: str, field: str) -> None:
    """What keywords that hold no schemas may be."""
    where = f"{field}: {keyword} at {place}"
    if keyword == "type":
        types = value if isinstance(value, list) and value else [value]
        wrong = next((each for each in types if not isinstance(each, str) or each not in _TYPES), None)
        if wrong is not None or value is None:
            known = ", ".join(sorted(_TYPES))
            raise InvalidRequest(f"{field}: the type {str(wrong)[:64]!r} at {place} is none of {known}", field)
    elif keyword == "required":
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise InvalidRequest(f"{where} must be a list of names", field)
    elif keyword == "enum":
        if not isinstance(value, list) or not value:
            raise InvalidRequest(f"{where} must be a list and not empty", field)
    elif keyword in ("pattern", "format", "$ref"):
        if not isinstance(value, str):
            raise InvalidRequest(f"{where} must be text", field)
    elif keyword in _COUNTS:
        if type(value) is not int or value < 0:
            raise InvalidRequest(f"{where} must be an integer of at least 0", field)
    elif keyword in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InvalidRequest(f"{where} must be a number", field)


def _object(value: Any, place: str, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field}: {place} must be an object", field)
    return value


def _list(value: Any, place: str, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{field}: {place} must be a list", field)
    return value
