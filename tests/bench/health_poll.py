"""Asks ``/health`` every few milliseconds until it is told to stop; prints the seconds of each answer as JSON.

    python tests/bench/health_poll.py PORT

A process of its own with plain sockets, so that the load generator's event loop does not count as the worker's.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import time

INTERVAL = 0.015


class _Stop(Exception):
    pass


def _stop(number: int, frame: object) -> None:
    raise _Stop


def ask(connection: http.client.HTTPConnection) -> float:
    """Seconds until the whole answer was there; ``SystemExit`` if it is not 200."""
    started = time.perf_counter()
    connection.request("GET", "/health")
    response = connection.getresponse()
    body = response.read()
    seconds = time.perf_counter() - started
    if response.status != 200:
        raise SystemExit(f"/health answered {response.status}: {body[:200]!r}")
    return seconds


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    seconds = []
    try:
        while True:
            seconds.append(ask(connection))
            time.sleep(INTERVAL)
    except _Stop:
        print(json.dumps(seconds))


if __name__ == "__main__":
    main()
