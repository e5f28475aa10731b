"""Django's settings. What an operator may change comes from the environment: see ``config/registry.py``."""

from __future__ import annotations

import os
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import django_stubs_ext
from psycopg.conninfo import conninfo_to_dict

import gateway.config
from gateway.config import keys, parse
from gateway.config.provider import Provider, provider
from gateway.embedded import sockets

django_stubs_ext.monkeypatch()

_values = gateway.config.read(os.environ)
_project = Path(__file__).resolve().parents[2]

DATA_DIR: Path = _values["LORAPLEX_DATA_DIR"] or (
    _project if (_project / "manage.py").is_file() else Path.cwd()
).joinpath("var")
_keys = keys.folder(DATA_DIR)

# Stores ---------------------------------------------------------------------------------------------------------------
MODEL_STORE = DATA_DIR / "models"
ADAPTER_STORE = DATA_DIR / "adapters"
INCOMING_DIR = DATA_DIR / "incoming"
DOWNLOAD_DIR = DATA_DIR / "downloads"
FILES_DIR = DATA_DIR / "files"
LOG_DIR = DATA_DIR / "log"

# Secrets --------------------------------------------------------------------------------------------------------------
SECRET_KEY: str = _values["LORAPLEX_SECRET_KEY"] or keys.django_key(_keys)
KEY_PEPPERS: dict[int, bytes] = _values["LORAPLEX_KEY_PEPPERS"] or parse.peppers(keys.peppers_text(_keys))
GRANT_PRIVATE_KEY_FILE: Path
GRANT_PUBLIC_KEY_FILE: Path
GRANT_PRIVATE_KEY_FILE, GRANT_PUBLIC_KEY_FILE = keys.given_pair(
    _values["LORAPLEX_GRANT_PRIVATE_KEY_FILE"], _values["LORAPLEX_GRANT_PUBLIC_KEY_FILE"]
) or keys.grant_pair(_keys)

# Databases ------------------------------------------------------------------------------------------------------------
EMBEDDED_POSTGRES: bool = _values["DATABASE_URL"] is None
EMBEDDED_VALKEY: bool = _values["REDIS_URL"] is None
DATABASE_DSN: str = _values["DATABASE_URL"] or sockets.postgres_dsn(DATA_DIR)
REDIS_URL: str = _values["REDIS_URL"] or sockets.redis_url(DATA_DIR)

_dsn: dict[str, Any] = dict(conninfo_to_dict(DATABASE_DSN))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _dsn.pop("dbname"),
        "USER": _dsn.pop("user", ""),
        "PASSWORD": _dsn.pop("password", ""),
        "HOST": _dsn.pop("host", ""),
        "PORT": str(_dsn.pop("port", "")),
        "CONN_MAX_AGE": 0,  # each request has a thread of its own: nobody would come back to what it kept open
        "OPTIONS": _dsn,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Django ---------------------------------------------------------------------------------------------------------------
DEBUG: bool = _values["LORAPLEX_DEBUG"]
ALLOWED_HOSTS: list[str] = list(_values["LORAPLEX_ALLOWED_HOSTS"])
CSRF_TRUSTED_ORIGINS: list[str] = list(_values["LORAPLEX_TRUSTED_ORIGINS"])
INSTALLED_APPS = [
    "tenants",
    "fleet",
    "console",
    "gateway",
    "channels",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "gateway.not_allowed.page_for_methods",
    "gateway.known_callers.known_callers",
]
ROOT_URLCONF = "gateway.urls"
ASGI_APPLICATION = "gateway.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # In a checkout; the wheel carries the same files as console/templates, which APP_DIRS finds.
        "DIRS": [_project / "templates"] if (_project / "manage.py").is_file() else [],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # served from the packages themselves: there is no collectstatic step to forget
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
APPEND_SLASH = False
LANGUAGE_CODE = "en-gb"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# People ---------------------------------------------------------------------------------------------------------------
PUBLIC_URL: str | None = _values["LORAPLEX_PUBLIC_URL"]
LOGIN_URL = "/accounts/sign-in"
LOGIN_REDIRECT_URL = "/console/"
CURRENCY: str = _values["LORAPLEX_CURRENCY"]
SESSION_COOKIE_AGE = 7 * 86400
OIDC: Provider | None = provider(_values)
MAIL: bool = _values["LORAPLEX_EMAIL_URL"] is not None
globals().update(_values["LORAPLEX_EMAIL_URL"] or {})  # EMAIL_HOST and its like
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL: str = _values["LORAPLEX_EMAIL_FROM"]

# Browsers -------------------------------------------------------------------------------------------------------------
TRUSTED_PROXIES: list[str] = [str(network) for network in _values["LORAPLEX_TRUSTED_PROXIES"]]
_https: bool = _values["LORAPLEX_HTTPS"]
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _https else None
SECURE_HSTS_SECONDS = 31_536_000 if _https else 0
CSRF_FAILURE_VIEW = "gateway.error_pages.csrf_failed"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# Processes ------------------------------------------------------------------------------------------------------------
HOST: str = _values["LORAPLEX_HOST"]
PORT: int = _values["PORT"]
MAX_BODY_BYTES: int = _values["LORAPLEX_MAX_BODY_BYTES"]
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
RESUME_SECONDS: int = _values["LORAPLEX_RESUME_SECONDS"]
RESUME_BYTES: int = _values["LORAPLEX_RESUME_BYTES"]
RESUME_TENANT_BYTES: int = _values["LORAPLEX_RESUME_TENANT_BYTES"]
GATEWAY_PROCESSES: int = _values["LORAPLEX_GATEWAY_PROCESSES"]
CELERY_PROCESSES: int = _values["LORAPLEX_CELERY_PROCESSES"]
BATCH_CONCURRENCY: int = _values["LORAPLEX_BATCH_CONCURRENCY"]
MAX_FILE_BYTES: int = _values["LORAPLEX_MAX_FILE_BYTES"]
MAX_FILES: int = _values["LORAPLEX_MAX_FILES"]
MAX_FILES_BYTES: int = _values["LORAPLEX_MAX_FILES_BYTES"]
BASE_MODEL: str | None = _values["LORAPLEX_BASE_MODEL"]
ACTIVATION_GATE: bool = _values["LORAPLEX_ACTIVATION_GATE"]
WORKER_PORT: int | None = _values["LORAPLEX_WORKER_PORT"]
WORKER_OPTIONS: tuple[str, ...] = (
    *(
        f"{option}={_values[name]}"
        for option, name in (
            ("--threads", "LORAPLEX_WORKER_THREADS"),
            ("--slots", "LORAPLEX_WORKER_SLOTS"),
            ("--kv-blocks", "LORAPLEX_WORKER_KV_BLOCKS"),
            ("--max-model-len", "LORAPLEX_WORKER_MAX_MODEL_LEN"),
        )
        if _values[name] is not None
    ),
    *_values["LORAPLEX_WORKER_OPTIONS"],
)

# Webhooks -------------------------------------------------------------------------------------------------------------
WEBHOOK_HTTP: bool = _values["LORAPLEX_WEBHOOK_HTTP"]
WEBHOOK_NETWORKS: tuple[IPv4Network | IPv6Network, ...] = _values["LORAPLEX_WEBHOOK_NETWORKS"]

# Celery ---------------------------------------------------------------------------------------------------------------
# kombu names a Unix socket in its own way.
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1)
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_TIME_LIMIT = 600
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# What waits for workers, for strangers' addresses or for batches, and what reads the whole ledger, has processes of its
# own: the reaper would wait behind it.
CELERY_TASK_ROUTES = {
    "gateway.tasks.run_batches": {"queue": "batches"},
    "tenants.tasks.deliver_webhooks": {"queue": "webhooks"},
    "tenants.tasks.check_adapter": {"queue": "adapters"},
    "tenants.tasks.collect_adapters": {"queue": "adapters"},
    "fleet.tasks.try_adapter": {"queue": "adapters"},
    "fleet.tasks.place_adapters": {"queue": "adapters"},
    "fleet.tasks.place_prefixes": {"queue": "adapters"},
    "tenants.tasks.roll_up": {"queue": "books"},
    "tenants.tasks.reconcile": {"queue": "books"},
    "tenants.tasks.reconcile_asked": {"queue": "books"},
}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# With the broker down an enqueue has to fail in seconds, not hang the command that asked for it.
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 3, "socket_timeout": 30, "visibility_timeout": 3600}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 2, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1}
CELERY_BEAT_SCHEDULE = {
    "reap": {"task": "tenants.tasks.reap", "schedule": 5.0, "options": {"expires": 30}},
    "check_waiting_adapters": {
        "task": "tenants.tasks.check_waiting_adapters",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "try_waiting_adapters": {
        "task": "fleet.tasks.try_waiting_adapters",
        "schedule": 15.0,
        "options": {"expires": 30},
    },
    "collect_adapters": {"task": "tenants.tasks.collect_adapters", "schedule": 3600.0, "options": {"expires": 600}},
    "place_adapters": {"task": "fleet.tasks.place_adapters", "schedule": 10.0, "options": {"expires": 20}},
    "place_prefixes": {"task": "fleet.tasks.place_prefixes", "schedule": 10.0, "options": {"expires": 20}},
    "run_batches": {"task": "gateway.tasks.run_batches", "schedule": 5.0, "options": {"expires": 10}},
    "collect_files": {"task": "gateway.tasks.collect_files", "schedule": 3600.0, "options": {"expires": 3600}},
    "roll_up": {"task": "tenants.tasks.roll_up", "schedule": 60.0, "options": {"expires": 60}},
    "reconcile": {"task": "tenants.tasks.reconcile", "schedule": 86400.0, "options": {"expires": 3600}},
    "reconcile_asked": {"task": "tenants.tasks.reconcile_asked", "schedule": 10.0, "options": {"expires": 10}},
    "sample_workers": {"task": "fleet.tasks.sample_workers", "schedule": 30.0, "options": {"expires": 30}},
    "forget_denials": {"task": "tenants.tasks.forget_denials", "schedule": 86400.0, "options": {"expires": 3600}},
    "forget_payloads": {"task": "tenants.tasks.forget_payloads", "schedule": 600.0, "options": {"expires": 600}},
    "deliver_webhooks": {"task": "tenants.tasks.deliver_webhooks", "schedule": 5.0, "options": {"expires": 10}},
    "notice": {"task": "tenants.tasks.notice", "schedule": 60.0, "options": {"expires": 60}},
    "forget_callers": {"task": "tenants.tasks.forget_callers", "schedule": 3600.0, "options": {"expires": 3600}},
    "forget_webhook_events": {
        "task": "tenants.tasks.forget_webhook_events",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
}

# Logging --------------------------------------------------------------------------------------------------------------
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": _values["LORAPLEX_LOG_LEVEL"]},
}
