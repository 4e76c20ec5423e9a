"""Real `limpet serve` processes for tests: started on a free port, waited for, and surely ended.

    with catalog_server(str(tmp_path / "fleet")) as server:
        load_catalog("c", type="rest", uri=server.url)

The fleet may be a directory or a bucket; for a bucket pass its `env` (credentials).
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Answer", "CatalogServer", "ask", "catalog_server", "start_server", "until"]

START_S = 60.0
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and type of an error, checked against the error model of the specification."""
        model = self.json["error"]
        assert model.keys() >= {"message", "type", "code"}, model
        assert model["code"] == self.status
        assert self.headers["content-type"] == "application/json"
        return self.status, model["type"]


def ask(
    url: str,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Answer:
    """One request on a connection of its own; the path goes out as it is. Other than bytes, a body is sent as JSON."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    try:
        sent = dict(headers or {})
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None and "content-type" not in {name.lower() for name in sent}:
            sent["content-type"] = "application/json"
        connection.request(method, path, body=data, headers=sent)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def until(what: str, holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until it holds."""
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, f"not so after {patience_s:.0f} s: {what}"
        time.sleep(0.02)


class CatalogServer:
    """A running process."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.url = ""

    def log(self) -> str:
        """All that it printed."""
        return "".join((self.folder / name).read_text(errors="replace") for name in ("out", "err"))

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request."""
        return ask(self.url, method, path, body, headers)

    def ready(self) -> dict[str, Any] | None:
        """What it says of itself; None while it is not ready."""
        try:
            answer = self.ask("GET", "/readyz")
        except (OSError, http.client.HTTPException):
            return None
        return answer.json if answer.status == 200 else None

    def wait_until_leading(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until writes go through it."""
        until(f"{self.url} leads\n{self.log()}", lambda: (self.ready() or {}).get("leads"), patience_s)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal it, and wait for its end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)

    def kill(self) -> None:
        """kill -9."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start_server(
    *arguments: str, env: Mapping[str, str] | None = None, port: int = 0, verb: str = "serve"
) -> CatalogServer:
    """Start `limpet serve ...`, or `limpet ui ...`, and wait until it answers. Whoever calls must `kill` it."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-serve-"))
    command = [str(Path(sys.executable).parent / "limpet"), verb, *arguments, "--port", str(port), "--json"]
    tied = shutil.which("setpriv")
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [*([tied, "--pdeathsig", "KILL", "--"] if tied else []), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**_clean_environ(), **(env or {})},
            cwd=folder,
            start_new_session=True,
        )
    server = CatalogServer(process, folder)

    def announced() -> bool:
        assert process.poll() is None, f"{command} ended with {process.returncode}:\n{server.log()}"
        with suppress(ValueError):
            server.url = json.loads((folder / "out").read_text())["url"].removesuffix("/ui")
        return bool(server.url)

    try:
        until("it says where it listens", announced, START_S)
        until("it is ready", lambda: announced() and server.ready() is not None, START_S)
    except BaseException:
        server.kill()
        raise
    return server


def _clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LIMPET_")}


@contextmanager
def catalog_server(
    fleet_url: str, *arguments: str, env: Mapping[str, str] | None = None, lead: bool = True
) -> Iterator[CatalogServer]:
    """`limpet serve` on a fleet, until it leads; its `url` is what clients need. Ended and removed at the end."""
    server = start_server(*arguments, "--url", fleet_url, env=env)
    try:
        if lead:
            server.wait_until_leading()
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
