"""The servers that peers need: each in its own folder, and surely stopped."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.queues.api import NotHere

__all__ = ["SERVERS", "moto_port", "postgres", "postgres_port", "redis", "redis_port", "server_versions", "tied"]

START_S = 30.0
POSTGRES_PLACES = "/usr/lib/postgresql"
"""Debian keeps the server's commands out of PATH."""
POSTGRES_USER = "postgres"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A redis-server that writes its log at once and syncs it once a second; yields the path of its socket."""
    command = _redis_command()
    path = folder / "socket"
    settings = ["--port", "0", "--unixsocket", str(path), "--dir", str(folder), "--save", "", "--appendonly", "yes"]
    with _running([*tied("KILL"), command, *settings], folder, lambda: _listens(path), signal.SIGTERM):
        yield str(path)


@contextmanager
def redis_port(folder: Path) -> Iterator[int]:
    """The same server on a TCP port of 127.0.0.1, which it yields."""
    port = _free_port()
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly", "yes"]
    with _running([*tied("KILL"), _redis_command(), *settings], folder, lambda: _answers(port), signal.SIGTERM):
        yield port


@contextmanager
def moto_port(folder: Path) -> Iterator[int]:
    """moto's SQS; yields its port."""
    port = _free_port()
    command = [*tied("KILL"), sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, folder, lambda: _answers(port), signal.SIGTERM):
        yield port


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A Postgres with fsync on; yields the folder of its socket. Never run by root: it refuses that."""
    with _postgres(folder, {"listen_addresses": ""}):
        yield str(folder)


@contextmanager
def postgres_port(folder: Path) -> Iterator[int]:
    """The same server on a TCP port of 127.0.0.1, which it yields."""
    port = _free_port()
    with _postgres(folder, {"listen_addresses": "127.0.0.1", "port": str(port)}):
        yield port


@contextmanager
def _postgres(folder: Path, listens: dict[str, str]) -> Iterator[None]:
    initdb, server = _postgres_command("initdb"), _postgres_command("postgres")
    user = _postgres_user()
    data = folder / "data"
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    as_user = ["--reuid", user.pw_name, "--regid", str(user.pw_gid), "--clear-groups"] if user else []
    made = subprocess.run(
        [*tied("KILL", *as_user), initdb, "-D", str(data), "-U", "bench", "--auth=trust", "--encoding=UTF8"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise RuntimeError(f"initdb failed: {made.stderr.strip()}")
    settings = {
        **listens,
        "unix_socket_directories": str(folder),
        "fsync": "on",
        "shared_buffers": "512MB",
        "max_wal_size": "4GB",
    }
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [*tied("INT", *as_user), server, "-D", str(data), *flags]
    with _running(command, folder, lambda: b"ready to accept" in _log(folder).read_bytes(), signal.SIGINT):
        yield


SERVERS = {"redis": redis, "postgres": postgres}


def server_versions() -> dict[str, str]:
    """What the servers say of themselves."""
    found = {}
    for name, command in (("redis-server", _redis_command), ("postgres", lambda: _postgres_command("postgres"))):
        try:
            said = subprocess.run([command(), "--version"], capture_output=True, text=True, check=True).stdout
            found[name] = next((word.removeprefix("v=") for word in said.split() if "." in word), "unknown")
        except NotHere:
            found[name] = "not installed"
    return found


@contextmanager
def _running(command: Sequence[str], folder: Path, ready: Callable[[], bool], stop: signal.Signals) -> Iterator[None]:
    with _log(folder).open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until_s = time.monotonic() + START_S
        while not ready():
            if process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"{command[-1]} did not start:\n{_log(folder).read_text()[-2000:]}")
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _log(folder: Path) -> Path:
    return folder / "server.log"


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tied(sign: str, *more: str) -> list[str]:
    """A prefix that ends the command when this process ends, however it does."""
    tool = shutil.which("setpriv")
    if tool is None:
        raise NotHere("setpriv (Debian package util-linux)")
    return [tool, *more, "--pdeathsig", sign, "--"]


def _redis_command() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise NotHere("redis-server (Debian package redis-server)")
    return found


def _postgres_command(name: str) -> str:
    beside = sorted(Path(POSTGRES_PLACES).glob(f"*/bin/{name}"))
    found = str(beside[-1]) if beside else shutil.which(name)
    if found is None:
        raise NotHere(f"{name} (Debian package postgresql)")
    return found


def _postgres_user() -> pwd.struct_passwd | None:
    """Whom to run as; None if this process is not root already."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(POSTGRES_USER)
    except KeyError as error:
        raise NotHere(f"a user {POSTGRES_USER} (Debian package postgresql)") from error
