"""Connections that lie idle between requests."""

from __future__ import annotations

from starlette.applications import Starlette

from inference.front.server import _server

GATEWAY_KEEPS = 30
"""Seconds, as in :mod:`gateway.services`."""


def test_the_gateway_drops_them_before_the_worker_does() -> None:
    """The other way round a request meets a connection that is just being closed."""
    assert _server(Starlette()).config.timeout_keep_alive >= 2 * GATEWAY_KEEPS
