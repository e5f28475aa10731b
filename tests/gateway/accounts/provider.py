"""A small OpenID Connect provider with real RS256 keys, on a socket; tests turn it into a bad one, claim by claim."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT_ID = "loraplex-tests"
SECRET = "a secret: with signs/+&"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class OidcServer:
    """Vouches for whom ``person`` describes. Every other field is a way to be wrong.

    :param claims: put over the id_token's own; ``None`` takes one away. :param answer: over the callback's parameters.
    :param metadata: over what it says of itself. :param sign: makes the id_token of its claims.
    """

    url: str = ""
    key: rsa.RSAPrivateKey = field(default_factory=new_key)
    kid: str = "first"
    person: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, str | None] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    sign: Any = None
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def discovery(self, request: Request) -> Response:
        found = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }
        return JSONResponse({**found, **self.metadata})

    def keys(self, request: Request) -> Response:
        public = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
        return JSONResponse({"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "RS256"}]})

    def authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["client_id"] == CLIENT_ID
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        sent = {"code": code, "state": asked["state"], **self.answer}
        query = urlencode({name: value for name, value in sent.items() if value is not None})
        return RedirectResponse(f"{asked['redirect_uri']}?{query}")

    async def token(self, request: Request) -> Response:
        form = await request.form()
        asked = self.codes.pop(str(form.get("code")), None)
        challenge = base64.urlsafe_b64encode(sha256(str(form.get("code_verifier")).encode()).digest()).rstrip(b"=")
        credentials = base64.b64decode(request.headers.get("authorization", "").removeprefix("Basic ")).decode()
        wrong = (
            "code"
            if asked is None
            else "verifier"
            if challenge.decode() != asked["code_challenge"]
            else "redirect_uri"
            if form.get("redirect_uri") != asked["redirect_uri"]
            else "client"
            if credentials != f"{CLIENT_ID}:{SECRET}"
            else None
        )
        if wrong is not None or asked is None:
            self.refused.append(str(wrong))
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": asked.get("nonce")}
        claims = {name: value for name, value in {**claims, **self.person, **self.claims}.items() if value is not None}
        signed = (self.sign or self.signed)(claims)
        return JSONResponse({"access_token": "at", "token_type": "Bearer", "expires_in": 300, "id_token": signed})

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": self.kid})

    def of_user(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer at"
        return JSONResponse(self.userinfo)

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.discovery),
                Route("/keys", self.keys),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
                Route("/userinfo", self.of_user),
            ]
        )


@contextmanager
def served() -> Iterator[OidcServer]:
    """On a free port of this machine until the block ends."""
    made = OidcServer()
    config = uvicorn.Config(made.application(), host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    made.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.should_exit = True
        thread.join(10)
