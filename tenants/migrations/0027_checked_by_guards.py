from __future__ import annotations

import time
from typing import Any

import django.db.models.deletion
from django.core.management import CommandError
from django.db import OperationalError, migrations, models, transaction

from tenants.sql import run_sql_file

_NAMED = {
    "tenant": "tenant",
    "key": "apikey",
    "base_model": "basemodel",
    "adapter_version": "adapterversion",
    "price": "price",
}
_COLUMNS = {
    **{("tenants_inferencerequest", f"{name}_id"): f"tenants_{to}" for name, to in _NAMED.items()},
    ("tenants_ledgerentry", "request_id"): "tenants_inferencerequest",
}

_FIND = """
SELECT c.conname FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
 WHERE c.conrelid = %s::regclass AND c.contype = 'f' AND a.attname = %s
"""

_TRIES = 50
_WAIT = "200ms"
"""Shorter than PostgreSQL looks for deadlocks: an admission has read what a constraint points to and comes to the table
of requests, a constraint's end takes both the other way round, and it is the migration that has to give way."""


def _drop(apps: Any, schema_editor: Any) -> None:
    for table, column in _COLUMNS:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(_FIND, [table, column])
            for (name,) in cursor.fetchall():
                _patiently(schema_editor.connection, f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')


def _restore(apps: Any, schema_editor: Any) -> None:
    for (table, column), to in _COLUMNS.items():
        statement = f"ALTER TABLE {table} ADD FOREIGN KEY ({column}) REFERENCES {to} DEFERRABLE INITIALLY DEFERRED"
        _patiently(schema_editor.connection, statement)


def _patiently(connection: Any, statement: str) -> None:
    """In a transaction of its own, and again where somebody had a lock."""
    for tries_left in reversed(range(_TRIES)):
        try:
            with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{_WAIT}'")
                cursor.execute(statement)
            return
        except (OperationalError, CommandError):  # tenants.upgrades words the former as the latter
            if not tries_left:
                raise
            time.sleep(0.1)


class Migration(migrations.Migration):
    """What requests and the ledger name stays by guards, which cost an admission nothing, instead of foreign keys."""

    atomic = False

    dependencies = [("tenants", "0026_together")]

    operations = [
        run_sql_file("guards_requests.sql", may_stay=True),
        migrations.SeparateDatabaseAndState(
            [migrations.RunPython(_drop, _restore)],
            [
                *(
                    migrations.AlterField(
                        "inferencerequest",
                        name,
                        models.ForeignKey(
                            db_constraint=False,
                            db_index=False,
                            null=name in ("adapter_version", "price"),
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="requests",
                            to=f"tenants.{to}",
                        ),
                    )
                    for name, to in _NAMED.items()
                ),
                migrations.AlterField(
                    "ledgerentry",
                    "request",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="ledger_entry",
                        to="tenants.inferencerequest",
                    ),
                ),
            ],
        ),
    ]
