"""The ASGI application: streaming endpoints in front, Django for everything else."""

from __future__ import annotations

import os
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

from django.core.asgi import get_asgi_application

_django = get_asgi_application()

# Only after Django is set up may its models be imported.
from gateway.border import Application, Border, Receive, Send  # noqa: E402
from gateway.consumers import CompletionConsumer, TextCompletionConsumer  # noqa: E402
from gateway.errors import not_found  # noqa: E402
from gateway.lifespan import Lifespan  # noqa: E402
from gateway.sockets import SocketConsumer, deny  # noqa: E402

_pages = Border(cast(Application, _django))
_streams = {
    "/v1/chat/completions": CompletionConsumer.as_asgi(),
    "/v1/completions": TextCompletionConsumer.as_asgi(),
}
_sockets = {"/v1/ws": SocketConsumer.as_asgi()}


async def _route(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        socket = _sockets.get(scope["path"])
        if socket is not None:
            await socket(scope, receive, send)
        else:
            await receive()
            await deny(scope, send, not_found(scope["path"]))
        return
    await _streams.get(scope["path"], _pages)(scope, receive, send)


application = Lifespan(_route)
