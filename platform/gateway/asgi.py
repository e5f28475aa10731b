"""The ASGI application: streaming endpoints in front, Django for everything else."""

from __future__ import annotations

import os
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")

import django
from django.db.backends.signals import connection_created
from django.urls import get_resolver, path

django.setup(set_prefix=False)

# Only after Django is set up may its models be imported.
from console.live import LiveConsumer  # noqa: E402
from gateway.border import Application, Border, Receive, Send  # noqa: E402
from gateway.consumers import CompletionConsumer, TextCompletionConsumer  # noqa: E402
from gateway.errors import not_found, upgrade_required  # noqa: E402
from gateway.file_upload import FileUpload  # noqa: E402
from gateway.http import send_json  # noqa: E402
from gateway.lifespan import Lifespan  # noqa: E402
from gateway.page_sockets import PageSocket  # noqa: E402
from gateway.sockets import SocketConsumer, deny  # noqa: E402
from gateway.turns import PatientHandler  # noqa: E402

PAGE_LOCK_SECONDS = 5
"""Longer than that no request of Django's waits for another's row: what waits has a place that others could use."""


def _impatient(connection: Any, **_: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{PAGE_LOCK_SECONDS}s"])


connection_created.connect(_impatient)
_ = get_resolver().url_patterns  # every view's imports: a fifth of a second that the first request does not wait


async def _only_a_socket(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    error = upgrade_required(scope["path"])
    await send_json(send, error.status, error.payload(), error.all_headers())


_pages = Border(cast(Application, PatientHandler()))
_streams = {
    "/v1/chat/completions": CompletionConsumer.as_asgi(),
    "/v1/completions": TextCompletionConsumer.as_asgi(),
    "/v1/files": FileUpload(_pages),
}
_live = PageSocket(LiveConsumer.as_asgi())
_sockets: dict[str, Application] = {
    "/v1/ws": SocketConsumer.as_asgi(),
    "/console/live": _live,
    "/console/t/<slug:tenant>/live": _live,
}
_not_upgraded = {"/v1/ws": Border(_only_a_socket)}
_socket_routes = [path(route.removeprefix("/"), cast(Any, socket)) for route, socket in _sockets.items()]


async def _route(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        for route in _socket_routes:
            found = route.resolve(scope["path"].removeprefix("/"))
            if found is not None:
                arguments = {"url_route": {"args": found.args, "kwargs": found.kwargs}}  # as Channels has them
                await found.func({**scope, **arguments}, receive, send)
                return
        await receive()
        await deny(scope, send, not_found(scope["path"]))
        return
    application = _streams.get(scope["path"]) or _not_upgraded.get(scope["path"], _pages)
    await application(scope, receive, send)


application = Lifespan(_route)
