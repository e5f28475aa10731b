"""Real servers for a test run: loaded with ``-p`` in pyproject.toml, because pytest-django reads the settings early.

The run gets a data directory of its own in the temporary directory, so it never meets a running installation. What the
developer's shell says about the database (``DATABASE_URL``, ``LORAPLEX_*``) does not reach the tests.

With ``-n 2`` (pytest-xdist) every process of the run has its own servers and data directory, and the one that only
hands out tests has none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gateway.embedded.postgres import Postgres
from gateway.embedded.valkey import Valkey

_data_dir = Path(tempfile.mkdtemp(prefix="loraplex-test-"))
_servers: list[Postgres | Valkey] = []

for _name in [name for name in os.environ if name.startswith("LORAPLEX_")] + ["DATABASE_URL", "REDIS_URL", "PORT"]:
    os.environ.pop(_name, None)
os.environ["LORAPLEX_DATA_DIR"] = str(_data_dir)


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.option.collectonly or _hands_out(session.config):
        return
    log = _data_dir / "log"
    for server in (Postgres(_data_dir, log / "postgres.log", fast=True), Valkey(_data_dir, log / "valkey.log")):
        server.start()
        _servers.append(server)


def _hands_out(config: pytest.Config) -> bool:
    """Whether this process runs no test itself because others beside it do."""
    return bool(config.getoption("dist", "no") != "no") and not hasattr(config, "workerinput")


def pytest_unconfigure() -> None:
    while _servers:
        _servers.pop().stop()
    shutil.rmtree(_data_dir, ignore_errors=True)
