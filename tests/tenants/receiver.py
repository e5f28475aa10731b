"""A server that receives webhooks, as a tenant has one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """``status``, ``answer`` and ``headers`` of the next answers; ``wait`` is held before each."""

    url: str
    got: list[Received] = field(default_factory=list)
    status: int = 200
    answer: bytes = b"thanks"
    headers: dict[str, str] = field(default_factory=dict)
    wait: threading.Event = field(default_factory=threading.Event)


@contextmanager
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            here.got.append(Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            here.wait.wait(30)
            self.send_response(here.status)
            for name, value in here.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(here.answer)))
            self.end_headers()
            try:
                self.wfile.write(here.answer)
            except OSError:  # who sent it has heard enough
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    here = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    here.wait.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield here
    finally:
        here.wait.set()
        server.shutdown()
        thread.join()
        server.server_close()
