"""Network addresses that a key may be used from."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from tenants.errors import Invalid

MOST = 100
"""Networks on one key."""

if TYPE_CHECKING:
    from django.http import HttpRequest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_FORM = re.compile(r"[0-9A-Fa-f:.]{2,45}(/\d{1,3})?", re.ASCII)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def normalised(texts: Sequence[str], param: str = "addresses") -> list[str]:
    """Networks in their one spelling, each once: ``203.0.113.7`` becomes ``203.0.113.7/32``.

    IPv4 written as IPv6 (``::ffff:203.0.113.0/120``) becomes IPv4, as clients' addresses do. Raises
    :class:`~tenants.errors.Invalid` for what is no network, for bits beyond the prefix, and for none or too many.
    """
    if not 1 <= len(texts) <= MOST:
        raise Invalid(f"{param} has to name 1 to {MOST} networks; null lifts the restriction.", param)
    return list(dict.fromkeys(str(_network(text, param)) for text in texts))


def _network(text: str, param: str) -> Network:
    try:
        if not _FORM.fullmatch(text):
            raise ValueError
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise Invalid(f"{param}: {text[:50]!r} is no address or network such as 203.0.113.0/24.", param) from None
    if ipaddress.ip_interface(text).ip != network.network_address:
        raise Invalid(f"{param}: {text} has bits beyond its prefix; {network} would be the network.", param)
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        mapped = network.network_address.ipv4_mapped
        return ipaddress.IPv4Network((int(mapped or 0), network.prefixlen - _MAPPED.prefixlen))
    return network


def networks(texts: Iterable[str] | None) -> tuple[Network, ...] | None:
    """Networks as they are stored; ``None``: no restriction."""
    return None if texts is None else _parsed(tuple(texts))


@lru_cache(maxsize=10_000)
def _parsed(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


def allowed(within: tuple[Network, ...] | None, address: str | None) -> bool:
    """Whether a client at this address may. Where there is a restriction, an address that nobody knows may not."""
    if within is None:
        return True
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:  # none: a Unix socket
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in within)


def address_of(request: HttpRequest) -> str | None:
    """Where the request came from, as the server in front of us says (uvicorn heeds a proxy that it was told of)."""
    return cast("str | None", request.META.get("REMOTE_ADDR")) or None
