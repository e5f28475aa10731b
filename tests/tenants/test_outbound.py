"""What tenants may have called: nothing inside the operator's network, by whatever spelling, name or redirect."""

from __future__ import annotations

import asyncio
import socket
import threading
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tenants import outbound
from tenants.errors import Invalid
from tenants.outbound import check_url, may_call
from tenants.webhook_delivery import _AT_ONCE
from tests.tenants.receiver import receiver

INSIDE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "192.0.2.1",
    "192.0.0.1",
    "192.0.0.9",
    "192.88.99.1",
    "198.18.0.1",
    "240.0.0.1",
    "::",
    "::1",
    "fe80::1",
    "fd00::1",
    "fec0::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::7f00:1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2001:db8::1",
    "64:ff9b:1::1",
    "100:0:0:1::1",
    "3fff::1",
    "3fff:fff:ffff::1",
    "5f00::1",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
]


@pytest.fixture
def http(settings: Any) -> Any:
    settings.WEBHOOK_HTTP, settings.WEBHOOK_NETWORKS = True, ()
    return settings


@pytest.mark.parametrize("address", INSIDE)
def test_inside_addresses_are_not_called(address: str, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = ()
    assert not may_call(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are(address: str) -> None:
    assert may_call(ip_address(address))


def test_an_operator_may_allow_a_network(settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = (ip_network("10.1.0.0/16"), ip_network("fd12::/64"))
    assert may_call(ip_address("10.1.2.3"))
    assert may_call(ip_address("::ffff:10.1.2.3"))
    assert may_call(ip_address("fd12::5"))
    assert not may_call(ip_address("10.2.0.1"))
    assert not may_call(ip_address("fd13::5"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org/hook",
        "http://example.org/hook",
        "ftp://example.org/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://",
        "https:///hook",
        "https://user:password@example.org/",
        "https://user@example.org/",
        "https://example.org/#part",
        "https://example.org:0/",
        "https://example.org:99999/",
        "https://example.org:x/",
        "https://127.0.0.1/",
        "https://127.0.0.1./",
        "https://127.1/",
        "https://127.1./",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://0x7F000001/",
        "https://0x/",
        "https://0/",
        "https://8.8/",
        "https://example.1/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[::1/",
        "https://exa mple.org/",
        "https://example.org\\@internal/",
        "https://example.org/\r\nhost: internal",
        "https://example.org/\0",
        "https://ex\u00e4mple.org/",
        "https://example.org/" + "x" * 2000,
    ],
)
def test_what_is_no_address_of_a_webhook(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_url(url)
    assert refused.value.param == "url"


def test_what_is_one() -> None:
    for url in (
        "https://example.org",
        "https://example.org:8443/a/b?c=d",
        "https://8.8.8.8/x",
        "https://a.b.c./",
        "https://1.0xg/",
    ):
        assert str(check_url(url)).startswith(url[:19])


async def post(url: str) -> outbound.Answer:
    async with outbound.caller() as calls:
        return await calls.post(url, {"content-type": "application/json"}, b"{}")


# Spellings that the system's resolver takes for 127.0.0.1, names that lead there, and the literal itself.
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "0177.0.0.1", "0"])
def test_loopback_is_not_reached_by_any_spelling(host: str, http: Any) -> None:
    with receiver() as server:
        port = server.url.rsplit(":", 1)[1].split("/")[0]
        answer = asyncio.run(post(f"http://{host}:{port}/hook"))
        assert server.got == []
    assert answer.status is None
    assert "public" in answer.error or "neither a name nor an address" in answer.error


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """The system's resolver says these addresses, one list a question; what it was asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(outbound.socket, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_with_one_inside_address_is_refused(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["8.8.8.8", "10.0.0.1"])
    answer = asyncio.run(post("http://example.org/"))
    assert answer.error == "example.org leads to an address that is not public."


def test_a_name_is_resolved_once_and_its_address_called(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    http.WEBHOOK_NETWORKS = (ip_network("127.0.0.1/32"),)
    asked = resolving(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
    with receiver() as server:
        port = server.url.rsplit(":", 1)[1].split("/")[0]
        answer = asyncio.run(post(f"http://rebinding.example:{port}/hook"))
        assert (answer.status, asked) == (200, ["rebinding.example"])
        assert server.got[0].headers["host"] == f"rebinding.example:{port}"


def test_names_whose_resolver_hangs_hold_up_no_other(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others of the deliveries that are made at once."""
    let_go = threading.Event()

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        if host != "quick.example":
            let_go.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(outbound.socket, "getaddrinfo", getaddrinfo)

    async def ask() -> outbound.Answer:
        async with outbound.caller() as calls:
            others = [asyncio.create_task(calls.post(f"http://h{n}.example/", {}, b"")) for n in range(_AT_ONCE - 1)]
            try:
                await asyncio.sleep(0)  # all of them have asked
                return await calls.post("http://quick.example/", {}, b"")
            finally:
                let_go.set()
                await asyncio.gather(*others)

    assert asyncio.run(ask()).error == "quick.example leads to an address that is not public."


def test_a_proxy_of_the_environment_is_not_used(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    http.WEBHOOK_NETWORKS = (ip_network("127.0.0.1/32"),)
    with receiver() as server, receiver() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert asyncio.run(post(server.url)).ok
        assert (len(server.got), proxy.got) == (1, [])


def test_who_does_not_answer_in_http_or_not_at_all(http: Any) -> None:
    http.WEBHOOK_NETWORKS = (ip_network("127.0.0.1/32"),)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-hello\r\n")
        writer.close()

    async def ask() -> tuple[outbound.Answer, outbound.Answer]:
        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            odd = await post(f"http://127.0.0.1:{port}/")
        return odd, await post(f"http://127.0.0.1:{port}/")

    odd, closed = asyncio.run(ask())
    assert (odd.status, closed.status) == (None, None)
    assert odd.error
    assert "Cannot connect" in closed.error
