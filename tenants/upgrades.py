"""``migrate`` beside processes that run, in every app: it queues nobody behind it, and does not go back half-way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management import CommandError
from django.db import OperationalError, connections
from django.db.migrations import Migration
from psycopg.errors import LockNotAvailable

LOCK_SECONDS = 2
"""How long a migration waits for a table that somebody reads or writes. Whoever comes after it waits as well, and an
admission gives up after five seconds."""


def prepare(*, using: str, plan: list[tuple[Migration, bool]], **_: Any) -> None:
    """Receiver of ``pre_migrate``. Raises ``CommandError`` for a way back that has a step which cannot be undone."""
    for migration, backwards in plan:
        if backwards and not all(operation.reversible for operation in migration.operations):
            raise CommandError(
                f"{migration.app_label}.{migration.name} cannot be undone: functions in the database need what it "
                "brought. Nothing was changed. To go back, restore a backup made before it."
            )
    if plan:
        connection = connections[using]
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
        if _worded not in connection.execute_wrappers:
            connection.execute_wrappers.append(_worded)


def finish(*, using: str, plan: list[tuple[Migration, bool]] | None = None, **_: Any) -> None:
    """Receiver of ``post_migrate``, which ``flush`` sends too: then there is no plan, and nothing to take back."""
    if plan:
        connection = connections[using]
        connection.execute_wrappers.remove(_worded)
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")


def _worded(execute: Callable[..., Any], *call: Any) -> Any:
    """What the database says of a table that was not to be had, as what to do."""
    try:
        return execute(*call)
    except OperationalError as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
        raise CommandError(
            f"A table that a migration changes has been in use for {LOCK_SECONDS} s: by a long query, or a backup. "
            "That migration was not begun, those before it are done. End what is in its way (pg_stat_activity names "
            "it) and run migrate again."
        ) from None
