"""SQL that lives in the database. A migration installs a file; a change is a new migration doing so again."""

from pathlib import Path

from django.db.migrations import RunSQL

_FOLDER = Path(__file__).parent


def run_sql_file(name: str) -> RunSQL:
    """The migration operation that installs ``tenants/sql/<name>``; every file can be run again over itself."""
    return RunSQL((_FOLDER / name).read_text(encoding="utf-8"), reverse_sql=RunSQL.noop)
