"""Parsers: text from the environment to a value. Each raises ``ValueError`` with the rest of a sentence.

The sentence starts with the setting's name: "PORT must be a number from 1 to 65535, not 'http'."
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from inference import options
from inference.config import WorkerConfig
from inference.errors import ConfigError

OURS = ("model", "adapter_store", "grant_key", "json")
"""Options of a worker that the installation gives it."""

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def text(value: str) -> str:
    return value


def path(value: str) -> Path:
    return Path(value).expanduser().absolute()


def flag(value: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ValueError(f"must be true or false, not {value!r}")


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``, both included."""

    def parse(value: str) -> int:
        if not re.fullmatch(r"[0-9]{1,15}", value) or not least <= int(value) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {value!r}")
        return int(value)

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}, not {value!r}")
        return value

    return parse


def names(value: str) -> tuple[str, ...]:
    """Comma-separated; at least one."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise ValueError("must list at least one name, separated by commas")
    return found


def networks(value: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Comma-separated address ranges; at least one."""
    try:
        return tuple(ip_network(part) for part in names(value))
    except ValueError:
        raise ValueError(f"must list networks such as 10.0.0.0/8, not {value!r}") from None


def origins(value: str) -> tuple[str, ...]:
    """Comma-separated origins with a scheme, as Django's CSRF check wants them."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    for origin in found:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
            raise ValueError(f"must list origins such as https://example.org, not {origin!r}")
    return found


def origin(value: str) -> str:
    """One origin with a scheme, without a slash at its end."""
    found = origins(value.rstrip("/"))
    if len(found) != 1:
        raise ValueError(f"must be one origin such as https://example.org, not {value!r}")
    return found[0]


def issuer(value: str) -> str:
    """An OpenID Connect issuer: HTTPS, but for one on this very machine."""
    parts = urlsplit(value)
    loopback = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not (parts.scheme == "https" or loopback) or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"must be an issuer such as https://login.example.org, not {value!r}")
    return value


def email_url(value: str) -> dict[str, Any]:
    """Django's settings of a mail server; the URL holds a password, so no message repeats it."""
    shape = "must look like smtp://user:password@host:587"
    parts = urlsplit(value)
    ports = {"smtp": 587, "smtps": 465, "smtp+plain": 25}
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{shape}; its port is not a number from 1 to 65535") from None
    if parts.scheme not in ports or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(shape)
    return {
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": port or ports[parts.scheme],
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_TLS": parts.scheme == "smtp",
        "EMAIL_USE_SSL": parts.scheme == "smtps",
    }


def database_url(value: str) -> str:
    """A libpq connection string, from ``postgresql://user:password@host:port/name`` or ``host=… dbname=…``.

    The URL holds a password, so no message repeats it.
    """
    shape = "must look like postgresql://user:password@host:5432/name"
    if "://" in value and urlsplit(value).scheme not in ("postgresql", "postgres"):
        raise ValueError(f"{shape}; its scheme is {urlsplit(value).scheme!r}")
    try:
        parts = conninfo_to_dict(value)
    except ProgrammingError:
        raise ValueError(f"{shape}; it cannot be read") from None
    if not parts.get("dbname"):
        raise ValueError(f"{shape}; it names no database")
    port = str(parts.get("port", ""))
    if port and not all(one.isdigit() and 0 < int(one) < 65536 for one in port.split(",")):
        raise ValueError(f"{shape}; its port is not a number from 1 to 65535")
    return make_conninfo(**{name: str(value) for name, value in parts.items() if value is not None})


def redis_url(value: str) -> str:
    """``redis://``, ``rediss://`` or ``unix:///path``; the URL may hold a password, so no message repeats it."""
    shape = "must look like redis://host:6379/0 or unix:///path/to/socket"
    parts = urlsplit(value)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError(f"{shape}; its scheme is {parts.scheme!r}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{shape}; its port is not a number from 1 to 65535") from None
    if parts.scheme == "unix":
        if not parts.path.startswith("/") or parts.netloc:
            raise ValueError(f"{shape}; its path is not absolute")
    elif not parts.hostname or port == 0:
        raise ValueError(f"{shape}; it names no host")
    elif not re.fullmatch(r"/?[0-9]*", parts.path):
        raise ValueError(f"{shape}; its database is not a number")
    return value


def peppers(value: str) -> dict[int, bytes]:
    """``1:<hex>,2:<hex>``: each version once, at least 16 bytes each. The highest version signs new keys."""
    shape = "must look like 1:<hex>,2:<hex> with at least 32 hexadecimal digits each"
    found: dict[int, bytes] = {}
    for part in value.split(","):
        match = re.fullmatch(r"\s*([1-9][0-9]{0,4}):((?:[0-9a-fA-F]{2}){16,})\s*", part)
        if match is None:
            raise ValueError(shape)
        version = int(match[1])
        if version in found:
            raise ValueError(f"{shape}; version {version} is given twice")
        found[version] = bytes.fromhex(match[2])
    return found


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # argparse would exit
        raise ValueError(f"must be options of a worker (docs/worker.md lists them): {message.rstrip('.')}")


def worker_options(value: str) -> tuple[str, ...]:
    """``--weights int8 --speculate 4``, quoted as for a shell, as arguments of a worker on this machine."""
    parser = _Options(add_help=False, allow_abbrev=False)
    options.add_options(parser, WorkerConfig, without=(*OURS, "host", "port"), only_given=True)
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"must be quoted as for a shell: {str(error).rstrip('.')}") from None
    given = vars(parser.parse_args(words))
    try:
        options.check_ranges(WorkerConfig, given)
    except ConfigError as error:
        parser.error(str(error))
    return tuple(options.arguments(WorkerConfig, given))
