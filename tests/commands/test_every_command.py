"""Every management command of ours: help with an example that parses, ``--json``, and a failure that scripts notice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import connections
from psycopg.conninfo import make_conninfo

OURS = ("tenants", "fleet", "gateway", "console")
COMMANDS = sorted((name, app) for name, app in get_commands().items() if app in OURS)
IDS = [name for name, _ in COMMANDS]

SERVERS = {"up", "worker"}
"""Run until they are stopped; tests/ops starts them."""

WITHOUT_DATABASE = {
    "operator_token": ["--minutes", "0"],
    "add_webhook": ["acme", "--url", "x"],
}
"""Commands that get by without one, or look at their arguments first, and arguments that they refuse."""


def words(name: str, app: str) -> list[str]:
    """Its own example, as its help gives it."""
    command = load_command_class(app, name)
    text = getattr(command, "example", None) or command.help.rpartition("Example: ")[2]
    program, shown, *arguments = shlex.split(text)
    assert (program, shown) == ("manage.py", name), text
    return arguments


@pytest.mark.parametrize(("name", "app"), COMMANDS, ids=IDS)
def test_help_has_an_example_and_says_json(name: str, app: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = load_command_class(app, name)
    with pytest.raises(SystemExit) as ended:
        command.run_from_argv(["manage.py", name, "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"manage.py {name}" in shown.partition("xample:")[2]
    assert "--json" in shown
    assert command.create_parser("manage.py", name).parse_args([*words(name, app), "--json"]).json is True


@pytest.mark.parametrize(("name", "app"), COMMANDS, ids=IDS)
def test_a_misspelt_argument_fails(name: str, app: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_command_class(app, name).run_from_argv(["manage.py", name, *words(name, app), "--jsno"])
    assert ended.value.code == 2
    assert "--jsno" in capsys.readouterr().err


@pytest.fixture
def database_away(django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PostgreSQL where nobody listens, for Django's connection and for pools."""
    connection = connections["default"]
    with django_db_blocker.unblock():
        connection.close()
        monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        monkeypatch.setitem(connection.settings_dict, "PORT", "1")
        monkeypatch.setattr(settings, "DATABASE_DSN", make_conninfo(settings.DATABASE_DSN, host="127.0.0.1", port=1))
        yield
        connection.close()


@pytest.mark.parametrize(
    ("name", "app"), [each for each in COMMANDS if each[0] not in SERVERS], ids=[n for n in IDS if n not in SERVERS]
)
@pytest.mark.usefixtures("database_away")
def test_without_a_database_the_exit_status_is_not_zero(
    name: str, app: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = WITHOUT_DATABASE.get(name) or words(name, app)
    with pytest.raises(SystemExit) as ended:
        load_command_class(app, name).run_from_argv(["manage.py", name, *arguments])
    said = capsys.readouterr()
    assert ended.value.code == 1
    assert "Traceback" not in said.err + said.out
    if name != "doctor":  # which says it in its table
        assert len(said.err.strip().splitlines()) == 1, said.err


@pytest.mark.parametrize(("embedded", "remedy"), [(True, "manage.py up"), (False, "DATABASE_URL")])
@pytest.mark.parametrize("name", ["tenants", "reap"])  # with Django's connection, and with a pool
@pytest.mark.usefixtures("database_away")
def test_it_says_what_to_do_without_one(
    name: str, embedded: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "EMBEDDED_POSTGRES", embedded)
    with pytest.raises(CommandError, match=f"^PostgreSQL does not answer; .*{remedy}"):
        call_command(name)


def test_the_readme_names_every_command_and_no_other() -> None:
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    table = text.partition("The other commands")[2].partition("Installed as a wheel")[0]
    shown = set(re.findall(r"manage\.py (\w+)", text)) | set(re.findall(r"`(\w+)`", table))
    assert shown == set(IDS)
