"""Connections to workers that lie idle between requests."""

from __future__ import annotations

import uvicorn
from starlette.applications import Starlette

from gateway.services import IDLE_SECONDS
from inference.front.server import _server


def test_the_gateway_drops_them_before_the_worker_does() -> None:
    """The other way round a request meets a connection that is just being closed."""
    for config in (_server(Starlette()).config, uvicorn.Config(Starlette())):  # ours, and vLLM's
        assert config.timeout_keep_alive >= IDLE_SECONDS + 1
