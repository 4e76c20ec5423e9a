"""The dashboard of a fleet in memory or in a directory, served by a thread."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn

import limpet
from limpet.app import Fleet
from limpet.kernel.runtime import system
from limpet.service.app import HttpApp, Routes
from limpet.service.log import ServiceLog
from limpet.service.parts import ServiceContext
from limpet.service.protocol import ConnectionLimiter, LimitedProtocol
from limpet.service.tokens import Tokens
from limpet.ui.server import UiPart
from support.servers.catalog import Answer, ask, until

__all__ = ["DashboardServer", "Serve"]

OWN = {"sec-fetch-site": "same-origin", "x-limpet-ui": "1"}


class DashboardServer:
    """The routes of the dashboard on a free port."""

    def __init__(self, fleet: Fleet, tokens: Tokens | None = None, *, read_only: bool = False) -> None:
        self.fleet = fleet
        self.context = ServiceContext(fleet, system(), ServiceLog(system(), "none"))
        self.part = UiPart(self.context, tokens or Tokens(), read_only=read_only, root=True)
        self.app = HttpApp(Routes(self.part.routes()), system(), body_bytes_max=1 << 20)
        protocol = partial(LimitedProtocol, ConnectionLimiter(), self.app)
        config = uvicorn.Config(self.app, http=protocol, ws="none", lifespan="off", log_level="critical")  # type: ignore[arg-type]
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        until("it runs", lambda: self._server.started)

    def get(self, *parts: str, headers: Mapping[str, str] = OWN) -> Answer:
        """Read something below /ui/api."""
        return ask(self.url, "GET", self.path(*parts), headers=headers)

    def post(self, *parts: str, body: Any, headers: Mapping[str, str] = OWN) -> Answer:
        """Do something below /ui/api."""
        return ask(self.url, "POST", self.path(*parts), body, headers)

    def path(self, *parts: str) -> str:
        """A path below /ui/api."""
        return "/ui/api/" + "/".join(quote(part, safe="") for part in parts)

    def listen(self) -> tuple[http.client.HTTPConnection, Iterator[dict[str, Any]]]:
        """The live feed: the connection, and the overviews as they come."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        connection.request("GET", "/ui/api/events", headers=OWN)
        response = connection.getresponse()
        assert (response.status, response.getheader("content-type")) == (200, "text/event-stream")

        def overviews() -> Iterator[dict[str, Any]]:
            while line := response.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

        return connection, overviews()

    def close(self) -> None:
        """End the streams, then the server."""
        self.context.ending.set()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
        assert not self.app.close()


Serve = Callable[..., DashboardServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves the dashboard of a fleet; all are ended with the test."""
    running: list[DashboardServer] = []

    def start(fleet: Fleet | None = None, tokens: Tokens | None = None, *, read_only: bool = False) -> DashboardServer:
        running.append(DashboardServer(fleet or limpet.open("memory://").check(), tokens, read_only=read_only))
        return running[-1]

    yield start
    for each in running:
        each.close()
