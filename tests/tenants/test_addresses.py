"""Where a key may be used from: one spelling of networks, and IPv4 that comes as IPv6."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.addresses import MOST, allowed, networks, normalised
from tenants.errors import Invalid


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("203.0.113.7", "203.0.113.7/32"),
        ("203.0.113.0/24", "203.0.113.0/24"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:DB8:0::1", "2001:db8::1/128"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("::/0", "::/0"),
        ("::ffff:203.0.113.7", "203.0.113.7/32"),
        ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
    ],
)
def test_one_spelling(text: str, stored: str) -> None:
    assert normalised([text, text]) == [stored]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "x",
            "203.0.113",
            "203.0.113.7/24",
            "203.0.113.0/33",
            "203.0.113.0/-1",
            "203.0.113.0/",
            "1.2.3.4/8/8",
        ),
        *("2001:db8::1/32", "2001:db8::/129", "fe80::1%eth0", "203.0.113.0/255.255.255.0", "٢٠٣.0.113.7", "01.2.3.4"),
        *("::ffff:203.0.113.7/120", "localhost", "1.2.3.4/8/8", "203.0.113.0/24\n", "1" * 46),
    ],
)
def test_what_is_no_network_is_refused_by_field(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        normalised([text])
    assert refused.value.param == "addresses"


def test_none_and_too_many_are_refused() -> None:
    for texts in ([], ["203.0.113.1"] * (MOST + 1)):
        with pytest.raises(Invalid):
            normalised(texts)


@pytest.mark.parametrize(
    ("within", "address", "may"),
    [
        (None, "203.0.113.7", True),
        (None, None, True),
        (["203.0.113.0/24"], "203.0.113.255", True),
        (["203.0.113.0/24"], "203.0.114.0", False),
        (["203.0.113.0/24"], "::ffff:203.0.113.9", True),
        (["203.0.113.0/24"], "::203.0.113.9", False),  # not the mapped form
        (["203.0.113.0/24"], None, False),
        (["203.0.113.0/24"], "/run/gateway.sock", False),
        (["203.0.113.0/24", "2001:db8::/32"], "2001:db8:ffff::1", True),
        (["2001:db8::/32"], "2001:db9::1", False),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["::/0"], "203.0.113.7", False),
        (["::/0"], "::ffff:203.0.113.7", False),
        (["0.0.0.0/0"], "::1", False),
    ],
)
def test_who_may(within: list[str] | None, address: str | None, may: bool) -> None:
    assert allowed(networks(within), address) is may


@given(st.ip_addresses(v=4), st.integers(0, 32), st.ip_addresses(v=4))
def test_mapped_and_plain_are_the_same(base: ipaddress.IPv4Address, bits: int, client: ipaddress.IPv4Address) -> None:
    network = ipaddress.ip_network(f"{base}/{bits}", strict=False)
    plain = networks(normalised([str(network)]))
    mapped = networks(normalised([f"::ffff:{network.network_address}/{bits + 96}"]))
    assert plain == mapped
    assert allowed(plain, str(client)) is allowed(plain, f"::ffff:{client}") is (client in network)
