"""OpenID Connect, code flow with state, nonce and PKCE. The protocol is Authlib's; what is believed is decided here."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from joserfc.errors import JoseError
from requests import RequestException

from gateway.config.provider import Provider

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key. ``none`` and secrets shared with the provider prove nothing to us."""

LEEWAY_SECONDS = 60
_CLIENT_SECONDS = 3600.0
_TIMEOUT_SECONDS = 10.0


class Untrusted(Exception):
    """The provider's answer was not believed, or there was none. ``str()`` is for the log alone."""


@dataclass(frozen=True, slots=True)
class Person:
    """Whom the provider vouches for. :param email: verified by the provider, in lower case."""

    issuer: str
    subject: str
    email: str


class Client:
    """Our side of one provider. What it says of itself is read at first use and again every hour."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._lock = threading.Lock()
        self._app: Any = None
        self._made_at = 0.0

    def begin(self, request: HttpRequest, redirect_uri: str) -> HttpResponse:
        """Send the browser to the provider. Raises :class:`Untrusted`."""
        try:
            response: HttpResponse = self._loaded().authorize_redirect(request, redirect_uri)
        except (AuthlibBaseError, RequestException, RuntimeError, ValueError) as error:
            raise _untrusted(error) from error
        return response

    def finish(self, request: HttpRequest) -> Person:
        """Who came back. Raises :class:`Untrusted`."""
        app = self._loaded()
        self._check_mix_up(app, request)
        issuer, client_id = self._provider.issuer, self._provider.client_id
        wanted = {"iss": {"essential": True, "value": issuer}, "aud": {"essential": True, "value": client_id}}
        try:
            token = app.authorize_access_token(request, claims_options=wanted, leeway=LEEWAY_SECONDS)
            claims = token.get("userinfo")
            if claims is None:
                raise Untrusted("the answer has no id_token")
            if "email" not in claims:
                claims = {**self._more(app, token, claims["sub"]), "sub": claims["sub"]}
        except (AuthlibBaseError, JoseError, RequestException, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise _untrusted(error) from error
        return self._person(claims)

    def _loaded(self) -> Any:
        with self._lock:
            if self._app is None or time.monotonic() - self._made_at > _CLIENT_SECONDS:
                self._app, self._made_at = self._load(), time.monotonic()
            return self._app

    def _load(self) -> Any:
        provider = self._provider
        app = OAuth().register(
            "oidc",
            client_id=provider.client_id,
            client_secret=provider.secret,
            server_metadata_url=f"{provider.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={
                "scope": "openid email",
                "code_challenge_method": "S256",
                "default_timeout": _TIMEOUT_SECONDS,
            },
        )
        try:
            metadata = app.load_server_metadata()
            app.client_kwargs["token_endpoint_auth_method"] = self._auth_method(metadata)
            offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
            metadata["id_token_signing_alg_values_supported"] = [name for name in ALGORITHMS if name in offered]
            stated = metadata.get("issuer")
            endpoints = [metadata[f"{name}_endpoint"] for name in ("authorization", "token")] + [metadata["jwks_uri"]]
        except (AuthlibBaseError, RequestException, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise _untrusted(error) from error
        if stated != provider.issuer:
            raise Untrusted(f"the provider calls itself {stated!r}, not {provider.issuer!r}")
        secure = provider.issuer.startswith("http:") or all(str(url).startswith("https://") for url in endpoints)
        if not secure:
            raise Untrusted("the provider names an endpoint without HTTPS")
        return app

    def _auth_method(self, metadata: dict[str, Any]) -> str:
        if self._provider.secret is None:
            return "none"
        offered = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        return "client_secret_basic" if "client_secret_basic" in offered else "client_secret_post"

    def _check_mix_up(self, app: Any, request: HttpRequest) -> None:
        """RFC 9207: a code of another provider is not taken to ours."""
        named = request.GET.get("iss")
        required = app.server_metadata.get("authorization_response_iss_parameter_supported") is True
        if named != self._provider.issuer and (required or named is not None):
            raise Untrusted(f"the answer came from {str(named)[:200]!r}")

    def _more(self, app: Any, token: dict[str, Any], subject: str) -> dict[str, Any]:
        """What providers tell only at their userinfo endpoint."""
        found: dict[str, Any] = app.userinfo(token=token)
        if found.get("sub") != subject:
            raise Untrusted("the userinfo endpoint speaks of somebody else")
        return found

    def _person(self, claims: dict[str, Any]) -> Person:
        subject, email = claims.get("sub"), claims.get("email")
        if not isinstance(subject, str) or not 0 < len(subject) <= 255 or not subject.isprintable():
            raise Untrusted("the subject is none")
        if not isinstance(email, str) or not 0 < len(email) <= 150 or not email.isprintable():
            raise Untrusted("there is no e-mail address")
        if claims.get("email_verified") is not True:
            raise Untrusted("the e-mail address is not verified")
        domains, domain = self._provider.domains, email.rpartition("@")[2].lower()
        if domains and domain not in domains:
            raise Untrusted(f"e-mail addresses of {domain[:100]!r} are not accepted")
        return Person(self._provider.issuer, subject, email.lower())


_clients: dict[Provider, Client] = {}


def client() -> Client | None:
    """This process's client of ``settings.OIDC``; ``None``: passwords only."""
    provider: Provider | None = settings.OIDC
    if provider is None:
        return None
    return _clients.setdefault(provider, Client(provider))


def _untrusted(error: Exception) -> Untrusted:
    """With the kind of error and, of the library's own, its code: never with a token or what the browser sent."""
    if isinstance(error, Untrusted):
        return error
    code = getattr(error, "error", "")
    return Untrusted(f"{type(error).__name__} {str(code)[:100]!r}")
