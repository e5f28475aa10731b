"""What clients write to have answers constrained, in OpenAI's and in vLLM's words. Front and gateway read it alike."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from inference.errors import InvalidRequest, UnknownField
from inference.protocol import Constraint, ConstraintKind

FORMER_NAMES = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
}
"""vLLM's names until 0.12, and what they became."""

MAX_SOURCE = 128 * 1024
"""Most characters of a constraint's source."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")  # OpenAI's
_KINDS: dict[str, ConstraintKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
}


def constraint_of(body: Mapping[str, Any]) -> Constraint | None:
    """The constraint that ``response_format`` or ``structured_outputs`` asks for; ``None``: text as it comes.

    Whether its schema or grammar is a good one is found out by the worker. Raises :class:`InvalidRequest` naming the
    field for everything else that is wrong.
    """
    found = _response_format(body["response_format"]) if body.get("response_format") is not None else None
    outputs = body.get("structured_outputs")
    if outputs is not None:
        if found is not None:
            raise InvalidRequest("response_format and structured_outputs exclude each other", "structured_outputs")
        found = _structured_outputs(outputs)
    if found is not None:
        check_source(found)
    return found


def check_source(constraint: Constraint) -> None:
    """Raises :class:`InvalidRequest` where it is longer than a grammar is made of."""
    if len(constraint.source) > MAX_SOURCE:
        raise InvalidRequest(f"{constraint.field} exceeds {MAX_SOURCE} characters", constraint.field)


def _response_format(value: Any) -> Constraint | None:
    field = "response_format"
    kind = _object(field, value).get("type")
    if kind in ("text", "json_object"):
        _only(field, value, "type")
        return None if kind == "text" else Constraint("json_object", field=field)
    if kind != "json_schema":
        raise InvalidRequest(f"{field}.type must be text, json_object or json_schema", f"{field}.type")
    _only(field, value, "type", "json_schema")
    field = f"{field}.json_schema"
    schema = _object(field, value.get("json_schema"))
    _only(field, schema, "name", "schema", "strict", "description")
    if not isinstance(schema.get("name"), str) or not _NAME.match(schema["name"]):
        raise InvalidRequest(f"{field}.name must be 1 to 64 letters, digits, _ or -", f"{field}.name")
    if not isinstance(schema.get("strict"), bool | None):
        raise InvalidRequest(f"{field}.strict must be true or false", f"{field}.strict")
    return Constraint("json_schema", _written(_object(f"{field}.schema", schema.get("schema"))), f"{field}.schema")


def _structured_outputs(value: Any) -> Constraint:
    field = "structured_outputs"
    given = {name: part for name, part in _object(field, value).items() if part is not None}
    _only(field, given, *_KINDS)
    if len(given) != 1:
        raise InvalidRequest(f"{field} needs exactly one of {', '.join(_KINDS)}", field)
    ((name, part),) = given.items()
    where = f"{field}.{name}"
    if name == "json_object":
        if part is not True:
            raise InvalidRequest(f"{where} must be true", where)
        return Constraint("json_object", field=where)
    if name == "json" and not isinstance(part, str):
        return Constraint("json_schema", _written(_object(where, part)), where)
    if name == "choice":
        if not isinstance(part, list):
            raise InvalidRequest(f"{where} must be a list of texts", where)
        return Constraint("choice", _written(part), where)
    if not isinstance(part, str) or not part:
        raise InvalidRequest(f"{where} must be text and not empty", where)
    return Constraint(_KINDS[name], part, where)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be an object", field)
    return value


def _only(field: str, value: Mapping[str, Any], *known: str) -> None:
    for name in value:
        if name not in known:
            raise UnknownField(f"{field}.{name[:64]}")
