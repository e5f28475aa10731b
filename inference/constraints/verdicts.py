"""What rehearsals found, remembered per namespace."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from inference.protocol import Constraint

MAX_NAMESPACES = 1024
MAX_PER_NAMESPACE = 128

_Key = bytes


class Verdicts:
    """Error or ``None`` by constraint. A namespace never learns, not by time either, what another has compiled.

    Least recently used go first, of a namespace and of all. Called with the compiler's lock held.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[str, OrderedDict[_Key, str | None]] = OrderedDict()

    def find(self, namespace: str, constraint: Constraint) -> tuple[bool, str | None]:
        """Whether there is a verdict, and which."""
        known = self._of.get(namespace)
        key = _key(constraint)
        if known is None or key not in known:
            return False, None
        self._of.move_to_end(namespace)
        known.move_to_end(key)
        return True, known[key]

    def add(self, namespace: str, constraint: Constraint, error: str | None) -> None:
        known = self._of.setdefault(namespace, OrderedDict())
        self._of.move_to_end(namespace)
        known[_key(constraint)] = error
        if len(known) > MAX_PER_NAMESPACE:
            known.popitem(last=False)
        if len(self._of) > MAX_NAMESPACES:
            self._of.popitem(last=False)


def _key(constraint: Constraint) -> _Key:
    return hashlib.sha256(f"{constraint.kind}\0{constraint.source}".encode()).digest()
