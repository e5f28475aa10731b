"""Which addresses are the API's; all others are pages."""

from __future__ import annotations

_WHOLE = ("/v1", "/api", "/health")


def is_api(path: str) -> bool:
    return path in _WHOLE or path.startswith(("/v1/", "/api/"))
