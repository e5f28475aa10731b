"""Who does something to the platform, in the words of its audit log."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import Literal

Kind = Literal["key", "member", "operator", "command", "system"]


@dataclass(frozen=True, slots=True)
class Actor:
    """
    :param kind: ``key`` a tenant's API key, ``member`` somebody signed in, ``operator`` an operator's key or session,
        ``command`` whoever runs a management command, ``system`` a background task.
    :param name: an API key's public id, a user's name, an operator key's name, a task's name.
    :param address: the network address it came from, where there is one.
    :param operators_key: a key whose text an operator was shown, so that an operator may be the one who uses it.
    """

    kind: Kind
    name: str
    address: str | None = None
    operators_key: bool = False

    @property
    def for_operators(self) -> bool:
        """Whether an operator is behind it, or may be: what an account keeps from operators is kept from it."""
        return self.kind == "operator" or self.operators_key

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def of_command() -> Actor:
    """Whoever runs this process, by the system's name for them."""
    try:
        return Actor("command", getpass.getuser())
    except (KeyError, OSError):  # a user without a name, as containers have them
        return Actor("command", "unknown")


def of_task(name: str) -> Actor:
    return Actor("system", name)
