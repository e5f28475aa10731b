"""SQL that lives in the database. A migration installs a file; a change is a new migration doing so again.

Gateways of the version before run on while a new one is put in place. So a procedure that they call keeps its old
signature beside a new one, as a thin one that calls it.
"""

from pathlib import Path

from django.db.migrations import RunSQL

_FOLDER = Path(__file__).parent


def admission_files() -> list[RunSQL]:
    """Migration operations that install what an admission calls, and before it the column that those files read.

    For migrations before the one that tells the model of it, so that gateways admit throughout an upgrade.
    """
    column = RunSQL("ALTER TABLE tenants_account ADD COLUMN IF NOT EXISTS latest_day date NULL", RunSQL.noop)
    return [column, *(run_sql_file(f"{name}.sql", may_stay=True) for name in ("standing", "accounts", "admit"))]


def run_sql_file(name: str, *, may_stay: bool = False) -> RunSQL:
    """The migration operation that installs ``tenants/sql/<name>``; every file can be run again over itself.

    An earlier migration installs the file as it is today: it may speak of columns that only a later one adds, and until
    that one has run, gateways that are still there cannot call it. So a file goes in with the column that it needs, and
    with no migration shortly before. It cannot be undone: the functions would stay, and what they speak of would go.

    :param may_stay: the migration brings functions only, which do no harm without it: undone, it leaves them there.
    """
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return RunSQL(f"SET LOCAL check_function_bodies = off;\n{text}", RunSQL.noop if may_stay else None)
