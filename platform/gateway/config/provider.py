from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.config.errors import SettingError


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenID Connect provider at which people may sign in.

    :param secret: ``None`` for a public client. :param domains: of e-mail addresses, in lower case; empty: all.
    """

    issuer: str
    client_id: str
    secret: str | None = field(repr=False)
    name: str
    domains: frozenset[str]


def provider(values: Mapping[str, Any]) -> Provider | None:
    """What the settings say; ``None``: passwords only. Raises :class:`SettingError` for half of it."""
    issuer, client_id = values["LORAPLEX_OIDC_ISSUER"], values["LORAPLEX_OIDC_CLIENT_ID"]
    path = values["LORAPLEX_OIDC_CLIENT_SECRET_FILE"]
    if issuer is None:
        for name in ("LORAPLEX_OIDC_CLIENT_ID", "LORAPLEX_OIDC_CLIENT_SECRET_FILE"):
            if values[name] is not None:
                raise SettingError(f"LORAPLEX_OIDC_ISSUER must be set when {name} is.")
        return None
    if client_id is None:
        raise SettingError("LORAPLEX_OIDC_CLIENT_ID must be set when LORAPLEX_OIDC_ISSUER is.")
    try:
        secret = None if path is None else path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise SettingError(f"LORAPLEX_OIDC_CLIENT_SECRET_FILE must name a file that can be read, not {path}.") from None
    if secret == "":
        raise SettingError(f"LORAPLEX_OIDC_CLIENT_SECRET_FILE {path} is empty.")
    domains = frozenset(domain.lower().lstrip("@") for domain in values["LORAPLEX_OIDC_DOMAINS"])
    return Provider(issuer, client_id, secret, values["LORAPLEX_OIDC_NAME"], domains)
