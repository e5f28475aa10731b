"""What the values of single fields may be, where pydantic's own types cannot say it."""

from __future__ import annotations

from typing import Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from inference.errors import InvalidRequest
from inference.request_fields import COUNTS, SAMPLING, Check, Integer, Number
from tenants.errors import Invalid
from tenants.metadata import LONGEST_NAME, LONGEST_VALUE, MOST_METADATA, check_metadata

METADATA = {
    "type": "object",
    "maxProperties": MOST_METADATA,
    "propertyNames": {"minLength": 1, "maxLength": LONGEST_NAME},
    "additionalProperties": {"type": "string", "maxLength": LONGEST_VALUE},
}


class Shared:
    """Marks a field that the worker takes as well, under this name: the check that it has there holds here."""

    def __init__(self, name: str, check: Check | None = None) -> None:
        self._name = name
        self._check = (SAMPLING | COUNTS)[name] if check is None else check

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        check = self._check
        return check.schema() if isinstance(check, Number | Integer) else handler(schema)

    def _checked(self, value: Any) -> Any:
        try:
            return self._check(self._name, value)
        except InvalidRequest as error:
            raise PydanticCustomError("shared", "{message}", {"message": str(error)}) from None


def unused_metadata(value: Any) -> None:
    """Metadata is checked and then let go: nothing reads a live request's, and a request is kept while it runs."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "has to be a JSON object")
    try:
        check_metadata(value)
    except Invalid as error:
        context = {"message": str(error).rstrip("."), "param": error.param}
        raise PydanticCustomError("constraint", "{message}", context) from None


def text_content(value: Any) -> Any:
    """Text, or OpenAI's content parts as long as they are text; parts are joined as the model's template expects."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("content", "has to be text or a list of text parts")
    texts = []
    for number, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise PydanticCustomError("content", "part {number} has no type", {"number": number})
        if part["type"] != "text":
            raise PydanticCustomError(
                "unsupported", "parts of type {type} are not supported, only text", {"type": part["type"][:64]}
            )
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise PydanticCustomError(
                "content", "part {number} has to be an object of type and text alone", {"number": number}
            )
        texts.append(part["text"])
    return "\n".join(texts)


def only(*harmless: Any) -> AfterValidator:
    """For a field of OpenAI's that is not built: ``None`` and the given values mean nothing, all others are refused."""

    def check(value: Any) -> Any:
        if value is not None and not any(type(value) is type(item) and value == item for item in harmless):
            raise PydanticCustomError("unsupported", "is not supported")
        return value

    return AfterValidator(check)
