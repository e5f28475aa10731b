"""How deep JSON from outside may be nested: what walks through it later does so by recursion."""

from __future__ import annotations

from typing import Any

from inference.errors import InvalidRequest

MAX_NESTING = 100
"""Lists and objects within each other. Schemas that people write stay below twenty; Python's stack ends at 1,000."""


def is_too_deep(value: Any, most: int = MAX_NESTING) -> bool:
    """Whether lists and objects lie more than ``most`` deep in ``value``; level by level, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [
            part
            for container in level
            for part in (container.values() if isinstance(container, dict) else container)
            if isinstance(part, dict | list)
        ]
        if not level:
            return False
    return bool(level)


def check_nesting(body: dict[str, Any]) -> None:
    """Raises :class:`InvalidRequest` naming the field of ``body`` that is nested too deep."""
    for name, value in body.items():
        if is_too_deep(value, MAX_NESTING - 1):
            raise InvalidRequest(f"{name[:64]} is nested more than {MAX_NESTING} levels deep", name[:64])
