"""Requests to addresses that tenants name: never into the operator's own network unless the operator said so.

The host is resolved once, every address it has must be public (or in ``LORAPLEX_WEBHOOK_NETWORKS``), and the
connection goes to exactly those addresses: a name that says something else a moment later changes nothing. No redirect
is followed, no proxy of the environment is used, no cookie is kept, nothing is decompressed.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from django.conf import settings
from yarl import URL

from tenants.errors import Invalid

SECONDS = 10.0
"""For everything: resolving, connecting, sending and reading the answer."""

MOST_ANSWER = 64 * 1024
KEPT_ANSWER = 1024
_MOST_URL = 2000
_RESOLVERS = 64
"""As many as there are calls at once: a name whose resolver hangs holds one for as long as it likes, and no other call
waits behind it. Threads are made as they are needed.
"""

_NAT64 = IPv6Network("64:ff9b::/96")
_SPECIAL = (
    IPv4Network("192.0.0.0/24"),  # IETF protocol assignments, whole: Python takes two of them for public
    IPv4Network("192.88.99.0/24"),  # 6to4 relays, withdrawn
    IPv6Network("3fff::/20"),  # documentation
)
"""Of IANA's special-purpose registries what ``ipaddress`` calls global and not reserved."""

_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.IGNORECASE)

Address = IPv4Address | IPv6Address


class Refused(Exception):
    """The address is none that is called; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """
    :param status: ``None`` where there was no answer; ``error`` then says why.
    :param body: the first :data:`KEPT_ANSWER` bytes of it, as text.
    """

    status: int | None
    error: str
    body: str
    milliseconds: int

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def check_url(text: str, param: str = "url") -> URL:
    """The address in one reading of it. Raises :class:`~tenants.errors.Invalid` for one that cannot be called."""
    if not 0 < len(text) <= _MOST_URL:
        raise Invalid(f"{param} has to have 1 to {_MOST_URL} characters.", param)
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise Invalid(f"{param} has to be an address in ASCII without spaces.", param)
    schemes = ("https", "http") if settings.WEBHOOK_HTTP else ("https",)
    try:
        url = URL(text)
        if url.scheme not in schemes:
            raise Invalid(f"{param} has to begin with {' or '.join(f'{scheme}://' for scheme in schemes)}.", param)
        if not url.raw_host or not url.port:
            raise Invalid(f"{param} names no host.", param)
    except ValueError:
        raise Invalid(f"{param} is no address of the form https://host/path.", param) from None
    if url.user is not None or url.password is not None:
        raise Invalid(f"{param} must not hold a user or a password.", param)
    if url.raw_fragment:
        raise Invalid(f"{param} must not have a fragment (#…).", param)
    try:
        literal = ip_address(url.raw_host)
    except ValueError:
        # What the system's resolver reads as an address: 127.1, 2130706433, 0x7f.1. No top-level domain is a number.
        if _NUMBER.fullmatch(url.raw_host.rstrip(".").rpartition(".")[2]):
            message = f"{param}: {url.raw_host} is neither a name nor an address; write addresses as 203.0.113.7."
            raise Invalid(message, param) from None
        return url
    if not may_call(literal):
        raise Invalid(f"{param}: {literal} is no public address.", param)
    return url


def may_call(address: Address) -> bool:
    """Whether it is public, or in a network that the operator allowed. What an address embeds counts as well."""
    networks: Sequence[IPv4Network | IPv6Network] = settings.WEBHOOK_NETWORKS
    embedded = _embedded(address)
    if embedded is not None:
        return may_call(embedded)
    if any(address in network for network in networks):
        return True
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or getattr(address, "is_site_local", False)
        or any(address in network for network in _SPECIAL)
    )


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 one leads to: mapped, 6to4, Teredo's client, NAT64."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


class Caller:
    """Makes calls; from :func:`caller`. One at a time or many, on one event loop."""

    def __init__(self, resolvers: ThreadPoolExecutor) -> None:
        self._resolvers = resolvers

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Never raises for what the address or its answer is like; takes at most :data:`SECONDS`."""
        begun = time.monotonic()
        status, error, kept = None, "", b""
        try:
            async with asyncio.timeout(SECONDS):
                status, kept = await self._post(url, headers, body)
                if not 200 <= status < 300:
                    error = "redirects are not followed" if 300 <= status < 400 else f"answered with {status}"
        except TimeoutError:
            error = f"no answer within {SECONDS:g} s"
        except (Refused, Invalid) as refused:
            error = str(refused)
        except (aiohttp.ClientError, OSError, ValueError) as failed:
            error = f"{type(failed).__name__}: {failed}"
        text = kept.decode("utf-8", "replace").replace("\0", "\ufffd")
        return Answer(status, error[:300].replace("\0", "\ufffd"), text, round((time.monotonic() - begun) * 1000))

    async def _post(self, text: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        url = check_url(text)  # again: what the operator allows may have changed
        assert url.raw_host is not None
        assert url.port is not None
        pinned = await self._resolve(url.raw_host, url.port)
        connector = aiohttp.TCPConnector(resolver=_Pinned(pinned), use_dns_cache=False, force_close=True)
        async with (
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False
            ) as session,
            session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            read = bytearray()
            async for part in answer.content.iter_chunked(16 * 1024):
                read += part
                if len(read) >= MOST_ANSWER:
                    break
            return answer.status, bytes(read[:KEPT_ANSWER])

    async def _resolve(self, host: str, port: int) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._resolvers, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )
        except (socket.gaierror, UnicodeError):
            raise Refused(f"{host} has no address.") from None
        for _, _, _, _, address in found:
            if not may_call(ip_address(str(address[0]).partition("%")[0])):
                raise Refused(f"{host} leads to an address that is not public.")
        return [
            ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=family, proto=proto, flags=socket.AI_NUMERICHOST
            )
            for family, _, proto, _, address in found
        ]


class _Pinned(AbstractResolver):
    """Answers with the addresses that were looked at, whatever is asked."""

    def __init__(self, addresses: list[ResolveResult]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return self._addresses

    async def close(self) -> None:
        pass


@asynccontextmanager
async def caller() -> AsyncIterator[Caller]:
    """A :class:`Caller`. The system's resolver blocks its thread for as long as it likes: nobody waits for it here."""
    resolvers = ThreadPoolExecutor(_RESOLVERS, "resolve")
    try:
        yield Caller(resolvers)
    finally:
        resolvers.shutdown(wait=False, cancel_futures=True)
