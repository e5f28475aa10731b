"""Something that answers when it is asked how it is, as a worker does, and computes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def answering(fingerprint: str = "f" * 64, metrics: bytes = b"") -> Iterator[str]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            health = json.dumps({"status": "ok", "fingerprint": fingerprint}).encode()
            self.wfile.write(metrics if self.path == "/metrics" else health)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
