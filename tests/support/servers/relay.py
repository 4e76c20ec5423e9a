"""A relay in front of a real server: counts requests and bytes, and can lose a reply after the server did the work."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Relay"]

CHUNK = 1 << 16
_REQUEST = re.compile(rb"^(GET|PUT|HEAD|DELETE|POST) (\S+) HTTP/1.1\r\n", re.MULTILINE)


class Relay:
    """A context manager; `address` takes the place of the server's in a URL."""

    def __init__(self, url: str) -> None:
        self.target = urlsplit(url).netloc
        self.requests: list[str] = []
        self.bytes_down = 0
        self._lose: str | None = None
        self._open: set[socket.socket] = set()
        self._listener = socket.socket()

    def __enter__(self) -> Self:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def forget(self) -> None:
        """Count from zero."""
        self.requests.clear()
        self.bytes_down = 0

    def lose_reply(self, method: str) -> None:
        """Close the connection instead of passing on the answer to the next `method` request."""
        self._lose = method

    def _accept(self) -> None:
        host, _, port = self.target.partition(":")
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((host, int(port)))
            self._open |= {client, server}
            doomed = threading.Event()
            threading.Thread(target=self._up, args=(client, server, doomed), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client, doomed), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(CHUNK):
                for found in _REQUEST.finditer(data):
                    method = found[1].decode()
                    self.requests.append(f"{method} {found[2].decode()}")
                    if method == self._lose:
                        self._lose = None
                        doomed.set()
                server.sendall(data)
        self._close(client, server)

    def _down(self, server: socket.socket, client: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(CHUNK):
                if doomed.is_set():
                    break
                self.bytes_down += len(data)
                client.sendall(data)
        self._close(client, server)

    def _close(self, *both: socket.socket) -> None:
        for each in both:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
            self._open.discard(each)
