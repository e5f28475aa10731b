"""How deep JSON from outside may be nested, and how many values it may hold: what comes later walks through it in
Python, by recursion and for milliseconds in each thousand.
"""

from __future__ import annotations

from typing import Any

from inference.errors import InvalidRequest

MAX_NESTING = 100
"""Lists and objects within each other. Schemas that people write stay below twenty; Python's stack ends at 1,000."""

MAX_VALUES = 1 << 16
"""Of a request's body, a prompt's token ids aside: 32 for each of 2,048 messages, where one with a tool call has ten. A
schema has no more either, since it has 131,072 characters at most."""

MAX_TOKEN_IDS = 1 << 20
"""Of a prompt. A longer context than any model served has."""

_CONTAINERS = frozenset((dict, list))


def is_too_deep(value: Any, most: int = MAX_NESTING) -> bool:
    """Whether lists and objects lie more than ``most`` deep in ``value``; level by level, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = _inside(level)
        if not level:
            return False
    return bool(level)


def check_shape(body: dict[str, Any], most: int = MAX_VALUES) -> None:
    """Raises :class:`InvalidRequest` naming the field of ``body`` that is nested too deep, or with which the body has
    more than ``most`` values, or whose token ids are more than :data:`MAX_TOKEN_IDS`. Lists and objects are
    counted before they are looked into: 15 ms at most, for a body of any size.
    """
    left = most
    for name, value in body.items():
        left -= 1
        if isinstance(value, dict | list):
            if name == "prompt" and _are_ids(value):
                continue
            held, too_deep = _measured(value, left)
            left -= held
            if too_deep:
                raise InvalidRequest(f"{name[:64]} is nested more than {MAX_NESTING} levels deep", name[:64])
        if left < 0:
            raise InvalidRequest(f"{name[:64]}: the body holds more than {most} values", name[:64])


def _are_ids(prompt: Any) -> bool:
    """Whether it is a list without lists and objects, as token ids are, or a list of one such list. Raises as above."""
    ids = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
    if isinstance(ids, list) and len(ids) > MAX_TOKEN_IDS:
        raise InvalidRequest(f"prompt holds more than {MAX_TOKEN_IDS} token ids", "prompt")
    return isinstance(ids, list) and _CONTAINERS.isdisjoint(map(type, ids))


def _measured(value: Any, most: int) -> tuple[int, bool]:
    """How many values lie in ``value``, counted until they are more than ``most``, and whether too deep in a body."""
    level = [value] if isinstance(value, dict | list) else []
    held = 0
    for _ in range(MAX_NESTING - 1):
        held += sum(map(len, level))
        if held > most:
            return held, False
        level = _inside(level)
        if not level:
            return held, False
    return held, True


def _inside(level: list[Any]) -> list[Any]:
    """The lists and objects directly within those of ``level``."""
    parts = (container.values() if isinstance(container, dict) else container for container in level)
    # Most hold texts and numbers alone. Of a million token ids the types take 13 ms, and looking at each 88 ms.
    return [
        part
        for values in parts
        if not _CONTAINERS.isdisjoint(map(type, values))
        for part in values
        if isinstance(part, dict | list)
    ]
