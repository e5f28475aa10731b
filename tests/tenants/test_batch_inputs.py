"""Whether an input file names an adapter: wherever it stands, and without holding up who answers meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tenants import batch_inputs
from tenants.batch_inputs import Mentions
from tenants.models import Adapter, Tenant


def mentioned(path: Path, content: bytes, name: str = "pirate") -> bool:
    path.write_bytes(content)
    return Mentions(Adapter(tenant=Tenant(slug="acme"), name=name))._in(path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b'"pirate"', True),
        (b'"acme/pirate"', True),
        (b'"acme\\/pirate"', True),
        (b'"pirate@3"', True),
        (b'"acme\\/pirate@123456789"', True),
        (b'"globex/pirate"', False),
        (b'"pirates"', False),
        (b'"a pirate"', False),
        (b'"pirate@sea"', False),
        (b'"pirate@"', False),
        (b"pirate", False),
        (b"", False),
    ],
)
def test_a_name_is_found_across_the_ends_of_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, named: bool
) -> None:
    monkeypatch.setattr(batch_inputs, "PIECE", 64)
    for before in range(130):
        assert mentioned(tmp_path / "input", b"x" * before + text + b"y" * 70) == named, before


@pytest.mark.parametrize(
    ("text", "named"),
    [(b'"pirate@3"', True), (b'"acme\\/pirate@3"', True), (b'"pirate"', False), (b'"pirate@33"', False)],
)
def test_a_version_is_named_by_its_number_alone(tmp_path: Path, text: bytes, named: bool) -> None:
    path = tmp_path / "input"
    path.write_bytes(text)
    assert Mentions(Adapter(tenant=Tenant(slug="acme"), name="pirate"), 3)._in(path) == named


def test_what_is_gone_names_nothing(tmp_path: Path) -> None:
    assert not Mentions(Adapter(tenant=Tenant(slug="acme"), name="pirate"))._in(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pirate", b'{"custom_id": "1", "body": {"model": "tiny", "messages": []}}\n'),
        ("pirate", b'"acme/pirate@123456789x'),
        ("e", b'e "' + b'"' * 4000),
    ],
)
async def test_an_event_loop_beside_it_goes_on(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "input"
    path.write_bytes(content * (30_000_000 // len(content)))
    pauses: list[float] = []
    while min(pauses, default=1.0) > 0.05:
        assert len(pauses) < 5, f"{pauses} s: in one search the machine may have been busy, not in each"
        pauses.append(await longest_pause(path, name))


async def longest_pause(path: Path, name: str) -> float:
    """Seconds for which the loop stood still during a search that finds nothing."""
    mentions = Mentions(Adapter(tenant=Tenant(slug="acme"), name=name))
    search = asyncio.create_task(asyncio.to_thread(mentions._in, path))
    longest, last = 0.0, time.monotonic()
    while not search.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert not await search
    return longest
