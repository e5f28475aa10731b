"""Usage as a file, through a real gateway: long ones whole, also after a reader who left."""

from __future__ import annotations

import csv
import socket
import urllib.request
from datetime import UTC, datetime, timedelta
from io import StringIO
from urllib.parse import urlsplit

from django.db import connection

from tests.gateway.api import ledger
from tests.gateway.house import Actor, Process, wait_for

HOURS = 600
ASKED = "/api/usage?from=2024-03-01T00:00:00Z&to=2024-04-01T00:00:00Z&bucket=hour&format=csv&by=adapter&by=base_model"


def test_a_long_file_is_whole_and_a_reader_who_leaves_keeps_nothing(acme: Actor, gateway: Process) -> None:
    for hour in range(HOURS):
        ledger.ended(acme.key, datetime(2024, 3, 1, tzinfo=UTC) + timedelta(hours=hour))
    address = urlsplit(gateway.url)
    assert address.hostname
    with socket.create_connection((address.hostname, address.port or 80), timeout=10) as leaver:
        lines = [f"GET {ASKED} HTTP/1.1", f"Host: {address.netloc}", f"Authorization: Bearer {acme.secret}", "", ""]
        leaver.sendall("\r\n".join(lines).encode())
        assert leaver.recv(12) == b"HTTP/1.1 200"
    wait_for(lambda: _in_transactions() == 0)
    request = urllib.request.Request(gateway.url + ASKED, headers=acme.headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
        assert answer.headers["Content-Length"] == str(len(text))
    assert sum(int(row["requests"]) for row in csv.DictReader(StringIO(text))) == HOURS
    assert len(text.splitlines()) == 1 + HOURS


def _in_transactions() -> int:
    """Other connections that are in the midst of something."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND state LIKE 'idle in transaction%'"
        )
        [count] = cursor.fetchone()
    return int(count)
