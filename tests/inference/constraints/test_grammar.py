"""Constraints in llguidance's words: what is enforced, what is refused, nothing in between."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.constraints.grammar import grammar_of
from inference.constraints.vocabulary import Vocabulary
from inference.errors import ConfigError, InvalidRequest
from inference.protocol import Constraint
from inference.schema_keywords import MAX_DEPTH
from tests.inference.constraints.conftest import VOCAB


def _accepts(vocabulary: Vocabulary, constraint: Constraint, text: str) -> bool:
    matcher = vocabulary.matcher(grammar_of(constraint))
    assert not matcher.is_error(), matcher.get_error()
    tokens = vocabulary.encode(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def _schema(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


# Every validation keyword of the drafts 4 to 2020-12 and of OpenAPI that is not enforced, with a harmless value.
UNSUPPORTED = {
    "not": {}, "if": {}, "then": {}, "else": {}, "uniqueItems": True, "contains": {}, "minContains": 1,
    "maxContains": 1, "propertyNames": {}, "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {},
    "unevaluatedProperties": False, "unevaluatedItems": False, "contentEncoding": "base64",
    "contentMediaType": "x/y", "contentSchema": {}, "$dynamicRef": "#", "$dynamicAnchor": "a", "$recursiveRef": "#",
    "$vocabulary": {}, "nullable": True, "discriminator": {}, "id": "x", "extends": {}, "divisibleBy": 2,
    "x-guidance": {"lenient": True}, "maxLenght": 3,
}  # fmt: skip


@pytest.mark.parametrize("keyword", UNSUPPORTED)
def test_what_is_not_enforced_is_refused_by_name(keyword: str) -> None:
    schema = {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, {"properties": {"a": {keyword: UNSUPPORTED[keyword]}}}]},
    }
    with pytest.raises(InvalidRequest) as caught:
        grammar_of(Constraint("json_schema", json.dumps(schema), field="the.field"))
    assert repr(keyword) in str(caught.value)
    assert "#/items/anyOf/1/properties/a" in str(caught.value)
    assert caught.value.param == "the.field"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"é東b"'], ['"a"', '"abcd"']),
        ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
        ({"type": "string", "format": "date"}, ['"2026-02-28"'], ['"2026-2-28"', '"x"']),
        ({"type": "integer", "minimum": -2, "exclusiveMaximum": 12}, ["-2", "11"], ["-3", "12", "1.0"]),
        ({"type": "number", "exclusiveMinimum": 3}, ["3.1"], ["3", "2.9"]),
        ({"type": "integer", "multipleOf": 3}, ["9", "0"], ["10"]),
        ({"enum": ["x", 1, None, {"a": [1]}]}, ['"x"', "null", '{"a": [1]}'], ['"y"', "2"]),
        ({"const": 'a/é\n"'}, ['"a/é\\n\\""'], ['"a"']),
        ({"type": ["string", "null"]}, ["null", '"x"'], ["1"]),
        ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}, ['[null]'], ["[]", "[1]"]),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, ['["a"]'], ['["a", 1]', "[1]"]),
        ({"type": "object", "maxProperties": 1}, ['{"a": 1}'], ['{"a":1,"b":2}']),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False}, ['{"x1": 2}'], ['{"y":1}', '{"z":1}']),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"a"', "1"], ["null"]),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["4"], ["2", "6"]),
        ({"$ref": "#/$defs/a", "maxLength": 2, "$defs": {"a": {"type": "string"}}}, ['"ab"'], ['"abc"', "1"]),
        ({"type": "object", "properties": {"n": {"$ref": "#"}}}, ['{"n": {"n": {}}}', '{"m": 1}'], ['{"n": 1}']),
        ({"const": 1, "title": "t", "description": "d", "default": {}, "$comment": "c"}, ["1"], ["{}"]),
    ],
)  # fmt: skip
def test_what_is_enforced(vocabulary: Vocabulary, schema: Any, good: list[str], bad: list[str]) -> None:
    assert all(_accepts(vocabulary, _schema(schema), text) for text in good)
    assert not any(_accepts(vocabulary, _schema(schema), text) for text in bad)


def test_a_declared_property_has_no_second_name(vocabulary: Vocabulary) -> None:
    """``"\\u0061"`` is ``"a"``: an escaped key must not slip past the property's own schema."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert _accepts(vocabulary, _schema(schema), '{"a": 1, "b": "x"}')
    assert not _accepts(vocabulary, _schema(schema), '{"a": "x"}')
    assert not _accepts(vocabulary, _schema(schema), '{"\\u0061": "x"}')


def test_white_space_is_bounded(vocabulary: Vocabulary) -> None:
    anything = Constraint("json_object")
    assert _accepts(vocabulary, anything, '{\n    "a": [1, 2],\n    "b": {}\n}')
    assert not _accepts(vocabulary, anything, '{  "a": 1}')
    assert not _accepts(vocabulary, anything, '{\n\n"a": 1}')
    assert not _accepts(vocabulary, anything, "{" + "\n" + " " * 33 + '"a": 1}')


CHOICES = [
    "plain",
    'a"b',
    "a\\b",
    "a\nb",
    "\t",
    "é東😀",
    "a/b//c",
    "\x01",
    "{}",
    "a|b",
    "%x",
    "it's",
    " lead ",
    "\u2028",
]


@pytest.mark.parametrize("choice", CHOICES)
def test_any_text_can_be_a_choice(vocabulary: Vocabulary, choice: str) -> None:
    constraint = Constraint("choice", json.dumps(CHOICES))
    assert _accepts(vocabulary, constraint, choice)
    assert not _accepts(vocabulary, constraint, choice + "x")


@pytest.mark.parametrize("source", ["[]", '[""]', "[1]", '"a"', "{", json.dumps(["a"] * 1025)])
def test_choices_that_are_none(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar_of(Constraint("choice", source, "structured_outputs.choice"))
    assert caught.value.param == "structured_outputs.choice"


@pytest.mark.parametrize(
    "source",
    ["", "[1]", "nonsense", '{"properties": 3}', '{"anyOf": {}}', '{"items": 3}', '{"exclusiveMinimum": true}'],
)
def test_schemas_that_are_none(source: str) -> None:
    with pytest.raises(InvalidRequest):
        grammar_of(Constraint("json_schema", source))


def test_depth_and_length_are_bounded() -> None:
    deep: Any = {"type": "string"}
    for _ in range(MAX_DEPTH + 1):
        deep = {"items": deep}
    with pytest.raises(InvalidRequest, match="nested"):
        grammar_of(_schema(deep))
    with pytest.raises(InvalidRequest):
        grammar_of(Constraint("json_schema", '{"items":' * 50_000))
    with pytest.raises(InvalidRequest, match="131072"):
        grammar_of(Constraint("grammar", "x" * 131_073))


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="end token"):
        Vocabulary("{}", vocab_size=VOCAB, eos_token_ids=[])
    with pytest.raises(ConfigError, match="tokenizer"):
        Vocabulary("{}", vocab_size=VOCAB, eos_token_ids=[2])
