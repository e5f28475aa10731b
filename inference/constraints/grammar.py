"""A constraint in llguidance's own words."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from inference.errors import InvalidRequest
from inference.protocol import Constraint
from inference.response_format import check_source
from inference.schema_keywords import check_keywords

MAX_CHOICES = 1024
WHITESPACE = r"( |\n {0,32})?"
"""Between JSON's tokens: nothing, a space, or a line break with its indentation. Bounded: a model that may write
white space without end sometimes does."""
# Without \u: a key written with escapes would be a second name for a declared property, past its own schema.
_JSON: Any = {"whitespace_pattern": WHITESPACE, "json_allowed_escapes": 'nrbtf"\\', "lenient": False}


def grammar_of(constraint: Constraint) -> str:
    """Raises :class:`InvalidRequest` naming ``constraint.field``; says nothing about whether it compiles."""
    kind, source, field = constraint.kind, constraint.source, constraint.field
    check_source(constraint)
    if kind == "json_object":
        return _from_schema('{"type":"object"}', field)
    if kind == "json_schema":
        check_keywords(_json(source, field), field)
        return _from_schema(source, field)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(_literal(text) for text in _choices(source, field)))
    return LLMatcher.grammar_from_lark(source)


def _from_schema(source: str, field: str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(source, overrides=_JSON)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}", field) from error


def _json(source: str, field: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} is not valid JSON", field) from error


def _choices(source: str, field: str) -> list[str]:
    choices = _json(source, field)
    if not isinstance(choices, list) or not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidRequest(f"{field} must be a list of 1 to {MAX_CHOICES} texts", field)
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidRequest(f"{field}: each choice must be text and not empty", field)
    return choices


def _literal(text: str) -> str:
    """Lark's string literals are JSON's."""
    return json.dumps(text, ensure_ascii=False)
