"""The input file of a batch: one JSON object a line, each a request."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from django.conf import settings

from gateway.errors import ApiError, bad_request
from gateway.parsing import parse, parse_json
from gateway.schemas import AnyRequest, ChatRequest, CompletionRequest
from inference.safetensors_header import printable
from tenants.batches import MOST_LINES
from tenants.errors import ModelNotFound

MOST_ERRORS = 50
"""Errors that a failed batch shows; whoever makes more has made them in all lines."""

MOST_ID_CHARACTERS = 512
_FIELDS = ("custom_id", "method", "url", "body")
_SCHEMAS: dict[str, type[ChatRequest] | type[CompletionRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}


@dataclass(frozen=True, slots=True)
class Line:
    """:param number: from 1; empty lines count."""

    number: int
    custom_id: str
    request: AnyRequest


def read(path: Path) -> Generator[tuple[int, bytes | None], None, None]:
    """Lines that are not empty, and their numbers; ``None`` for one above the limit of a request's body."""
    most: int = settings.MAX_BODY_BYTES
    with path.open("rb") as file:
        number = 0
        while text := file.readline(most + 1):
            number += 1
            whole = len(text) <= most
            while not text.endswith(b"\n") and (rest := file.readline(most)):  # the rest of one that is too long
                whole, text = False, rest
            if not whole:
                yield number, None
            elif text.strip():
                yield number, text


def line_of(number: int, text: bytes | None, endpoint: str) -> Line:
    """Raises :class:`~gateway.errors.ApiError` 400 that names the field, those of the request as ``body.…``."""
    if text is None:
        raise bad_request(f"The line is larger than {settings.MAX_BODY_BYTES} bytes.", code="line_too_large")
    data = _object(text)
    if data["url"] != endpoint:
        raise bad_request(f"url has to be {endpoint}, as the batch's endpoint is.", "url", "mismatched_url")
    try:
        request = parse(_SCHEMAS[endpoint], data["body"])
    except ApiError as error:
        error.param = "body" if error.param is None else f"body.{error.param}"
        raise
    if request.stream:
        raise bad_request("body.stream: a batch does not stream.", "body.stream")
    return Line(number, data["custom_id"], request)


def custom_id_of(number: int, text: bytes | None) -> str:
    """Of a line that was found valid once. If it is not any more, as under a lower limit of bodies, which one it is."""
    try:
        custom_id: str = _object(text or b"")["custom_id"]
    except ApiError:
        return f"line {number} of the input"
    return custom_id


def _object(text: bytes) -> dict[str, Any]:
    """Everything but the request itself."""
    try:
        data = parse_json(text)
    except ApiError:
        raise bad_request("The line is not valid JSON.", code="invalid_json_line") from None
    if not isinstance(data, dict):
        raise bad_request("The line has to be a JSON object.", code="invalid_json_line")
    unknown = next((name[:64] for name in data if name not in _FIELDS), None)
    if unknown is not None:
        raise bad_request(f"Unrecognized field: {unknown}", unknown, "unknown_parameter")
    missing = [name for name in _FIELDS if name not in data]
    if missing:
        raise bad_request(f"{missing[0]} is required.", missing[0], "missing_required_parameter")
    custom_id = data["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MOST_ID_CHARACTERS:
        raise bad_request(f"custom_id has to be a string of 1 to {MOST_ID_CHARACTERS} characters.", "custom_id")
    if data["method"] != "POST":
        raise bad_request("method has to be POST.", "method")
    return data


def check(path: Path, endpoint: str, resolve: Callable[[str], object]) -> tuple[int, list[dict[str, Any]]]:
    """How many requests the file holds, and what is wrong with it, line by line, :data:`MOST_ERRORS` at most.

    :param resolve: raises :class:`~tenants.errors.ModelNotFound`.
    """
    seen: set[bytes] = set()
    errors: list[dict[str, Any]] = []
    total = 0
    with closing(read(path)) as texts:
        for number, text in texts:
            total += 1
            if total > MOST_LINES:
                message = f"The file has more than {MOST_LINES} requests."
                return total, [_error(bad_request(message, "input_file_id", "too_many_lines"), None)]
            try:
                _check_line(number, text, endpoint, resolve, seen)
            except ApiError as error:
                errors.append(_error(error, number))
                if len(errors) == MOST_ERRORS:
                    return total, errors
    if not total:
        errors.append(_error(bad_request("The file holds no request.", "input_file_id", "empty_file"), None))
    return total, errors


def _check_line(
    number: int, text: bytes | None, endpoint: str, resolve: Callable[[str], object], seen: set[bytes]
) -> None:
    line = line_of(number, text, endpoint)
    digest = blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if digest in seen:
        message = f"custom_id {line.custom_id[:64]!r} stands in an earlier line already."
        raise bad_request(message, "custom_id", "duplicate_custom_id")
    seen.add(digest)
    try:
        resolve(line.request.model)
    except ModelNotFound as error:
        raise ApiError(404, "model_not_found", str(error), "body.model") from None


def _error(error: ApiError, line: int | None) -> dict[str, Any]:
    param = None if error.param is None else printable(error.param)
    return {"code": error.code, "line": line, "message": printable(error.message, 500), "param": param}
