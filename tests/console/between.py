from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import quote

from django.conf import settings


class Between:
    """A way to the tests' database that can be cut and opened again. :ivar url: for ``DATABASE_URL``."""

    def __init__(self) -> None:
        parts = settings.DATABASES["default"]
        host, port = parts["HOST"], parts["PORT"] or "5432"
        self._to = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.open, self._lines = True, list[socket.socket]()
        login = f"{parts['USER']}:{quote(parts['PASSWORD'], safe='')}"
        self.url = f"postgresql://{login}@127.0.0.1:{self._listener.getsockname()[1]}/{parts['NAME']}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.open:
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX if isinstance(self._to, str) else socket.AF_INET)
                server.connect(self._to)
                self._lines += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        self._end(one, other)

    def _end(self, *lines: socket.socket) -> None:
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def cut(self) -> None:
        self.open = False
        self._end(*self._lines)

    def close(self) -> None:
        self.cut()
        self._end(self._listener)
