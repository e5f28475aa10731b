"""What the values of single fields may be, where pydantic's own types cannot say it."""

from __future__ import annotations

from typing import Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

MOST_STOPS = 4


def stop_texts(value: Any) -> Any:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PydanticCustomError("stop", "has to be a string or a list of strings")
    if len(value) > MOST_STOPS:
        raise PydanticCustomError("stop", "holds more than {most} strings", {"most": MOST_STOPS})
    if any(not 1 <= len(item) <= 256 for item in value):
        raise PydanticCustomError("stop", "each string has to be 1 to 256 characters long")
    return tuple(value)


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


def token_biases(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > 300:
        raise PydanticCustomError("logit_bias", "has to be an object of at most 300 token ids")
    checked = {}
    for token, bias in value.items():
        if not (isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 10):
            raise PydanticCustomError("logit_bias", "{token} is not a token id", {"token": str(token)[:32]})
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise PydanticCustomError("logit_bias", "the bias of {token} is not within -100 to 100", {"token": token})
        checked[token] = float(bias)
    return checked


def only(*harmless: Any) -> AfterValidator:
    """For a field of OpenAI's that is not built: ``None`` and the given values mean nothing, all others are refused."""

    def check(value: Any) -> Any:
        if value is not None and not any(type(value) is type(item) and value == item for item in harmless):
            raise PydanticCustomError("unsupported", "is not supported")
        return value

    return AfterValidator(check)
