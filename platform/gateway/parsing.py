"""From a body's bytes to its schema, or to the error that names the first field at fault."""

from __future__ import annotations

import gc
import threading
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import ApiError, bad_request
from gateway.schemas import MOST_MESSAGES, Message, Sampling, StreamOptions, Strict
from inference.errors import InvalidRequest
from inference.nesting import check_shape
from inference.response_format import FORMER_NAMES

RequestModel = TypeVar("RequestModel", bound=Sampling)

# Whole-model checks have no location of their own; their error's type names the field.
_FIELDS_OF_MODEL_CHECKS = {
    "stream_options", "max_tokens", "prompt_logprobs", "top_logprobs", "best_of",
}  # fmt: skip


_COLLECTOR = threading.Lock()
"""Two threads that switched it as they liked could leave it off for good."""


def parse_json(body: bytes | str) -> Any:
    """Raises :class:`ApiError` 400 for anything that is not one JSON value."""
    # Without the collector, which looks through what is being made again and again: 60 ms in place of 210 to 670 for
    # the 1.4 million lists of four megabytes. Other threads wait meanwhile, as orjson does not let go of Python's lock.
    with _COLLECTOR:
        collects = gc.isenabled()
        gc.disable()
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise bad_request("The body is not valid JSON.", code="invalid_json") from None
        finally:
            if collects:
                gc.enable()


def parse(schema: type[RequestModel], data: Any) -> RequestModel:
    """Raises :class:`ApiError` 400 that names the first field at fault."""
    if not isinstance(data, dict):
        raise bad_request("The body has to be a JSON object.", code="invalid_json")
    if len(data) > len(schema.model_fields):  # then one of them is unknown, and tells more than their number
        _check_names(schema, data)
    try:
        check_shape(data)
    except InvalidRequest as error:
        raise bad_request(f"{error}.", error.param, "invalid_json") from None
    _check_names(schema, data)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise error_of_validation(error.errors(include_url=False)) from None


def _check_names(schema: type[Sampling], data: dict[str, Any]) -> None:
    """Refuse the first unknown field, of the body, its options or a message, before any value: it often explains what
    else is wrong. Pydantic would make an error of each: a second for the 350,000 of four megabytes.
    """
    places: list[tuple[tuple[str | int, ...], type[Strict], Any]] = [
        ((), schema, data),
        (("stream_options",), StreamOptions, data.get("stream_options")),
    ]
    messages = data.get("messages")
    if isinstance(messages, list):
        places += ((("messages", number), Message, message) for number, message in enumerate(messages[:MOST_MESSAGES]))
    for place, model, given in places:
        if isinstance(given, dict) and not given.keys() <= model.model_fields.keys():
            name = next(name for name in given if name not in model.model_fields)
            raise error_of_validation([{"type": "extra_forbidden", "loc": (*place, name), "msg": "", "input": None}])


def error_of_validation(details: list[ErrorDetails]) -> ApiError:
    """The first detail as an :class:`ApiError`; unknown fields go before others, they often explain them."""
    detail = next((d for d in details if d["type"] == "extra_forbidden"), details[0])
    where = field_path(detail["loc"]) or (detail["type"] if detail["type"] in _FIELDS_OF_MODEL_CHECKS else None)
    if detail["type"] in ("constraint", "unknown"):
        where = detail["ctx"]["param"]
    if where in FORMER_NAMES:
        return bad_request(f"{where} is now called {FORMER_NAMES[where]}.", where, "unknown_parameter")
    match detail["type"]:
        case "extra_forbidden":
            return bad_request(f"Unrecognized request argument: {where}", where, "unknown_parameter")
        case "missing":
            return bad_request(f"{where} is required.", where, "missing_required_parameter")
        case "unknown":
            return bad_request(f"{detail['msg']}.", where, "unknown_parameter")
        case "unsupported":
            colon = "" if detail["msg"].startswith("is ") else ":"
            return bad_request(f"{where}{colon} {detail['msg']}.", where, "unsupported_parameter")
    message = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    if detail["type"] in {"model_type", "model_attributes_type", "dict_type"}:  # whose words name a class of ours
        message = f"{where or 'The body'} has to be a JSON object"
    message = (
        message
        if where is None or message.startswith(where) or detail["type"] == "constraint"
        else f"{where}: {message}"
    )
    return bad_request(f"{message}.", where)


def field_path(location: tuple[int | str, ...]) -> str | None:
    """``("messages", 0, "content")`` as ``messages[0].content``."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path[:256] or None
