"""`limpet serve` as a real process that tests start, kill and start again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from support.servers.process import Bucket

__all__ = ["Place", "Service", "api", "compactor", "place_in", "poll", "whole"]

PATIENCE_S = 60.0
SECRET = {"LIMPET_RPC_SECRET": "between-the-two-of-us"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a catalog lies. `env` is for those who serve it, `keys` for PyIceberg, which learns the rest by itself."""

    url: str
    env: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory."""
        return "://" not in self.url

    @property
    def endpoint(self) -> str:
        """`host:port` of the S3 server; empty for a directory."""
        return urlsplit(parse_qs(urlsplit(self.url).query).get("endpoint", [""])[0]).netloc


def place_in(bucket: Bucket, prefix: str) -> Place:
    """A place in a bucket, with the bucket's own keys."""
    keys = {
        "s3.access-key-id": bucket.env["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": bucket.env["AWS_SECRET_ACCESS_KEY"],
    }
    return Place(bucket.at(prefix), bucket.env, keys)


class Service:
    """One process of `limpet serve ...`, on one port for all its lives. A context manager: it surely ends."""

    def __init__(
        self, arguments: Sequence[str], *, port: int, folder: Path, name: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.name = name
        self._port = port
        self._log = folder / f"{name}.log"
        self._env = {**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})}
        self._command = [
            *_dies_with_parent(),
            str(Path(sys.executable).parent / "limpet"),
            *arguments,
            "--port",
            str(port),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Begin a life; `wait` tells when it answers."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """Ask it to end, as a supervisor does; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(PATIENCE_S)
        self._process = None
        return code

    def wait(self, *, leads: bool = True) -> Self:
        """Return once it answers, and leads."""
        poll(
            lambda: self.leads() if leads else self.status("/healthz") == 200,
            lambda: f"{self.name} is not ready: {self.facts()}\n{self.log()}",
        )
        return self

    def status(self, path: str) -> int:
        """The status of a GET; 0 if nobody answers."""
        return self._get(path)[0]

    def facts(self) -> dict[str, Any]:
        """What it says of itself; nothing if it does not answer."""
        status, body = self._get("/readyz")
        found: dict[str, Any] = json.loads(body) if status == 200 else {}
        return found

    def demand_life(self) -> None:
        """Fail, if it ended and nobody killed it."""
        assert self._process is None or self._process.poll() is None, f"{self.name} ended by itself:\n{self.log()}"

    def _get(self, path: str) -> tuple[int, bytes]:
        self.demand_life()
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException):
            return 0, b""
        finally:
            connection.close()

    def leads(self) -> bool:
        """Whether it takes writes."""
        return bool(self.facts().get("leads"))

    def log(self) -> str:
        """Whether it runs, and the end of all that it printed."""
        code = self._process.poll() if self._process else "killed"
        return f"{self.name} ({'runs' if code is None else code}): {self._log.read_text(errors='replace')[-6000:]}"


def whole(place: Place, folder: Path, *, lease_s: float | None = None) -> Service:
    """API and compactor in one process."""
    return Service(
        ["serve", "--url", place.url, *_lease(lease_s)], port=_port(), folder=folder, name="serve", env=place.env
    )


def compactor(place: Place, folder: Path) -> Service:
    """The compactor alone."""
    arguments = ["serve", "compactor", "--url", place.url]
    return Service(arguments, port=_port(), folder=folder, name="compactor", env={**place.env, **SECRET})


def api(place: Place, folder: Path, behind: Service, *, lease_s: float | None = None, name: str = "api") -> Service:
    """The API alone, in front of a compactor."""
    arguments = ["serve", "api", "--url", place.url, "--compactor-url", behind.url, *_lease(lease_s)]
    return Service(arguments, port=_port(), folder=folder, name=name, env={**place.env, **SECRET})


def _lease(lease_s: float | None) -> Sequence[str]:
    return [] if lease_s is None else ["--lease-s", str(lease_s)]


def _port() -> int:
    """A free port below those that clients get: one that knocks at a dead service's port may be given that very port,
    and then it talks to itself, and the service cannot come back."""
    while True:
        port = random.randrange(12_000, 30_000)
        with socket.socket() as knock, suppress(OSError):
            knock.bind(("127.0.0.1", port))
            return port


def poll(holds: Callable[[], object], what: Callable[[], str]) -> None:
    """Wait until it holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, what()
        time.sleep(0.02)


def _dies_with_parent() -> Sequence[str]:
    tool = shutil.which("setpriv")
    return [tool, "--pdeathsig", "KILL", "--"] if tool else []
