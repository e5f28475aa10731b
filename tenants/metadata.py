"""What clients attach to requests and batches for their own use, as OpenAI has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenants.errors import Invalid

MOST_METADATA, LONGEST_NAME, LONGEST_VALUE = 16, 64, 512
_NO_CHARACTER = "none of them NUL or half of a surrogate pair"


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raises :class:`~tenants.errors.Invalid`, which names the entry at fault."""
    if len(metadata) > MOST_METADATA:
        raise Invalid(f"metadata may have {MOST_METADATA} entries.", "metadata")
    for name, value in metadata.items():
        if not 0 < len(name) <= LONGEST_NAME or not _storable(name):
            raise Invalid(f"metadata: a key has to have 1 to {LONGEST_NAME} characters, {_NO_CHARACTER}.", "metadata")
        if not isinstance(value, str) or len(value) > LONGEST_VALUE or not _storable(value):
            message = f"metadata.{name} has to be a string of at most {LONGEST_VALUE} characters, {_NO_CHARACTER}."
            raise Invalid(message, f"metadata.{name}")


def _storable(text: str) -> bool:
    """Whether PostgreSQL's JSON can hold it. A lone surrogate comes of JSON's ``"\\ud800"``."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
