"""One server for a whole test run, however many pytest-xdist workers use it.

The first worker that needs it starts a keeper process (this module, run as a script), which starts the server and is
its parent. Every worker holds a shared lock on one file for as long as it lives; the keeper waits for the exclusive
lock, which the kernel grants when the last worker has ended, however it ended. Then it stops the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from support.servers.process import Bucket, NotInstalled, Server, temp_folder

__all__ = ["shared"]

SERVERS = {"seaweedfs": "SeaweedFS", "rgw": "CephRGW", "azurite": "Azurite", "rclone": "RcloneS3", "moto": "Moto"}
READY, LOG, USERS = "ready.json", "keeper.log", "users"
START_S = 300.0

_known: dict[Path, Bucket | str] = {}


def shared(name: str, run_id: str) -> Bucket:
    """The bucket of the server `name` of this test run, started if nobody did so yet.   Raises: NotInstalled."""
    folder = temp_folder(f"limpet-run-{run_id}-{name}")
    if folder not in _known:
        _known[folder] = _join(name, folder)
    bucket = _known[folder]
    if isinstance(bucket, str):
        raise NotInstalled(bucket)
    return bucket


def _join(name: str, folder: Path) -> Bucket | str:
    folder.mkdir(exist_ok=True)
    with open(folder / "start.lock", "w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        users = os.open(folder / USERS, os.O_RDWR | os.O_CREAT)  # never closed: the lock lasts as long as the process
        fcntl.flock(users, fcntl.LOCK_SH)
        if not (folder / READY).exists():
            _start_keeper(name, folder)
    answer = json.loads((folder / READY).read_text())
    return answer["missing"] if "missing" in answer else Bucket(**answer)


def _start_keeper(name: str, folder: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    log = str(folder / LOG)
    keeper = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "support.servers.shared", name, str(folder)],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    until = time.monotonic() + START_S
    while not (folder / READY).exists():
        ended, _ = os.waitpid(keeper, os.WNOHANG)
        if ended or time.monotonic() > until:
            raise AssertionError(f"{name} did not start:\n{(folder / LOG).read_text()}")
        time.sleep(0.05)


def _keep(name: str, folder: Path) -> None:
    server_class = getattr(import_module(f"support.servers.{name}"), SERVERS[name])
    try:
        server: Server = server_class()
        with server:
            _publish(folder, asdict(server.bucket))
            _wait_for_users(folder)
    except NotInstalled as error:
        _publish(folder, {"missing": str(error)})
        _wait_for_users(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, facts: dict[str, object]) -> None:
    (folder / "new.json").write_text(json.dumps(facts))
    (folder / "new.json").rename(folder / READY)


def _wait_for_users(folder: Path) -> None:
    with open(folder / USERS) as users:
        fcntl.flock(users, fcntl.LOCK_EX)


if __name__ == "__main__":
    _keep(sys.argv[1], Path(sys.argv[2]))
