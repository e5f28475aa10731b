from __future__ import annotations

from typing import Any

from gateway.border import Application, Receive, Send, check_host
from gateway.consumers import services_of
from gateway.errors import ApiError, shutting_down
from gateway.sockets import check_origin, deny


class PageSocket:
    """A socket of the console's pages, whose visitor the session's cookie names. Browsers send that cookie whichever
    site's script asks: so the script has to be this very host's.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            if services_of(scope).draining:
                raise shutting_down()
            check_host(scope["headers"])
            check_origin(scope["headers"])
        except ApiError as error:
            await receive()
            await deny(scope, send, error)
            return
        await self._application(scope, receive, send)
