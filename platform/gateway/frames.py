"""Frames of ``/v1/ws``: JSON texts, each an object with a ``type``. Only their shape is checked here.

In: ``request`` (``id``, ``body``), ``cancel`` (``id``), ``ping``; ``session``, ``resume`` (``session``, ``seq``) and
``ack`` (``seq``) for clients that want to go on after a lost connection.
Out: ``chunk`` (``id``, ``data``: OpenAI's chunks), then ``done`` (``id``; ``"cancelled": true`` after a cancel) or
``error`` (``id``, ``error``, ``retry_after_ms`` where trying again may help); ``pong``; ``session``. An error whose
``id`` is null is about a frame that had none, or that of a request that goes on. In a session each frame with an ``id``
has a ``seq``: 1, 2, 3 …
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import ApiError, bad_request
from gateway.parsing import parse_json

PROTOCOL = "loraplex.v1"
MOST_ID_CHARACTERS = 64
MOST_SESSION_CHARACTERS = 128

GOING_AWAY, UNSUPPORTED_DATA, TOO_LARGE = 1001, 1003, 1009
WRONG_FRAMES, KEY_INVALID, TOO_SLOW, TAKEN_OVER, SESSION_ENDED = 4400, 4401, 4408, 4409, 4410

_FIELDS = {
    "request": {"type", "id", "body"},
    "cancel": {"type", "id"},
    "ping": {"type"},
    "session": {"type"},
    "resume": {"type", "session", "seq"},
    "ack": {"type", "seq"},
}
_MOST_SEQ = 2**53
_AHEAD = re.compile(r"""\s*\{\s*"type"\s*:\s*"request"\s*,\s*"id"\s*:\s*("(?:[^"\\]|\\.)+")\s*[,}]""")
_AHEAD_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a client's; what its ``kind`` does not have is empty.

    :param identity: the client's name for a request. :param body: of a request, unchecked; ``None`` when it has none.
    """

    kind: str
    identity: str = ""
    session: str = ""
    seq: int = 0
    body: Any = None


def read(text: str) -> Frame:
    """Raises :class:`~gateway.errors.ApiError` 400 that names the field at fault."""
    frame = parse_json(text)
    if not isinstance(frame, dict):
        raise bad_request("A frame has to be a JSON object.")
    kind = frame.get("type")
    if not isinstance(kind, str):
        raise bad_request("type has to be a string.", "type")
    known = _FIELDS.get(kind)
    if known is None:
        raise bad_request(f"Unknown frame type {kind[:64]!r}.", "type")
    unknown = next((name[:64] for name in frame if name not in known), None)
    if unknown is not None:
        raise bad_request(f"Unrecognized frame field: {unknown}", unknown, "unknown_parameter")
    return Frame(
        kind,
        _text(frame, "id", MOST_ID_CHARACTERS) if "id" in known else "",
        _text(frame, "session", MOST_SESSION_CHARACTERS) if "session" in known else "",
        _seq(frame) if "seq" in known else 0,
        frame.get("body"),
    )


def identity_of(text: str) -> str | None:
    """The ``id`` of a request's frame that cannot be :func:`read` otherwise; ``None`` if it has none of ours."""
    with contextlib.suppress(ApiError):
        frame = parse_json(text)
        if isinstance(frame, dict) and frame.get("type") == "request":
            return _text(frame, "id", MOST_ID_CHARACTERS)
    return None


def identity_ahead(text: str) -> str | None:
    """The ``id`` of a request's frame that is not read, where ``type`` and ``id`` come first."""
    found = _AHEAD.match(text, 0, _AHEAD_CHARACTERS)
    if found is None:
        return None
    with contextlib.suppress(orjson.JSONDecodeError):
        identity: str = orjson.loads(found[1])
        return identity if len(identity) <= MOST_ID_CHARACTERS else None
    return None


def of_error(identity: str | None, error: ApiError) -> bytes:
    frame = {"type": "error", "id": identity, **error.body}
    if error.retry_after is not None:
        frame["retry_after_ms"] = max(1, math.ceil(error.retry_after * 1000))
    return orjson.dumps(frame)


def of_done(identity: str, *, cancelled: bool = False) -> bytes:
    frame: dict[str, Any] = {"type": "done", "id": identity}
    return orjson.dumps({**frame, "cancelled": True} if cancelled else frame)


def numbered(frame: bytes, seq: int) -> bytes:
    return b'{"seq":%d,' % seq + frame[1:]


def _text(frame: dict[str, Any], name: str, most: int) -> str:
    value = frame.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise bad_request(f"{name} has to be a string of 1 to {most} characters.", name)
    return value


def _seq(frame: dict[str, Any]) -> int:
    value = frame.get("seq")
    if type(value) is not int or not 0 <= value <= _MOST_SEQ:
        raise bad_request("seq has to be the number of the last frame that arrived, or 0.", "seq")
    return value
