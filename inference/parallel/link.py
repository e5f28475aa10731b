"""One end of the connection between rank 0 and another rank: frames in order, both ways."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from inference.parallel.messages import Message, read


class Link:
    """Any thread may :meth:`send`; one reads.

    :param patience: seconds that sending waits for the other end to take anything; ``None``: until it is gone.
    """

    def __init__(self, connection: socket.socket, patience: float | None = None) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        if patience is not None:  # of sending alone: a timeout of Python's would end an idle reader too
            limit = struct.pack("@ll", int(patience), int(patience % 1 * 1_000_000))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, frame: bytes) -> None:
        """:param frame: an encoded message. Raises ``OSError`` when the other end is gone, or does not read.

        Then both ends are: what follows half a frame would be no message.
        """
        with self._sending:
            try:
                self._connection.sendall(frame)
            except BlockingIOError as error:
                self._connection.shutdown(socket.SHUT_RDWR)
                raise TimeoutError("it does not read what it is told") from error

    def messages(self) -> Iterator[Message]:
        """Until the other end is gone. Raises ``ValueError`` for what is no message."""
        with self._connection.makefile("rb") as stream:
            while (message := read(stream)) is not None:
                yield message

    def close(self) -> None:
        """The other end reads to its end; so does this one."""
        with contextlib.suppress(OSError):  # it was gone
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
