"""SIGTERM at any moment of a worker's life: it ends by itself, claims nothing more, and leaves no task in hand."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import limpet
from cli.harness import limpet_command, poll
from limpet.kernel.lease import State
from support.servers.process import Bucket

APP = """
import os, time
from pathlib import Path
import limpet

Path("importing").touch()
fleet = limpet.open(os.environ["LIMPET_URL"], durability="os")

@fleet.task()
def wait(n: int) -> int:
    with open("began", "a") as notes:
        notes.write(f"{n}\\n")
    while not Path("go").exists():
        time.sleep(0.2)
    return n
"""
SLOW = "import time\n" + APP.replace("fleet = ", "time.sleep(60)\nfleet = ")
TASKS = 6
AT_ONCE = 3
GRACE_S = "20"

Moment = tuple[str, float]
"""A milestone, and how many seconds after it the signal is sent."""


def _moments(count: int, seed: int) -> list[Moment]:
    """Spread over a worker's life, most of them over its start-up."""
    rng = random.Random(seed)
    life = ["spawned", "spawned", "child", "child", "importing", "importing", "ready", "began"]
    until_s = {"spawned": 1.5, "child": 1.0, "importing": 0.3, "ready": 0.1, "began": 0.1}
    names = [life[n % len(life)] for n in range(count)]
    return [(name, rng.uniform(0.0, until_s[name])) for name in names]


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []


def _start(folder: Path, source: str = APP, url: str | None = None) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "app.py").write_text(source)
    url = url or str(folder / "fleet")
    limpet.open(url, durability="os").queue("wait").push_many([{"n": n} for n in range(TASKS)], batch=2)
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            limpet_command("work", "app:fleet", "--grace", GRACE_S, "--log", "json"),
            cwd=folder,
            env={**os.environ, "LIMPET_URL": url},
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )


def _log(folder: Path) -> list[dict[str, Any]]:
    whole, _, _ = (folder / "log").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def _kinds(folder: Path) -> list[str]:
    return [event["event"] for event in _log(folder)]


def _reached(worker: subprocess.Popen[str], folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "spawned": lambda: True,
        "child": lambda: _children(worker.pid),
        "importing": (folder / "importing").exists,
        "ready": lambda: "ready" in _kinds(folder),
        "began": (folder / "began").exists,
    }


def _terminated(folder: Path, moment: Moment, url: str | None = None) -> str:
    """Let a worker live until the moment, stop it, and look at what it left; what is wrong with that, if anything."""
    name, after_s = moment
    worker = _start(folder, url=url)
    try:
        poll(name, _reached(worker, folder)[name])
        time.sleep(after_s)
        worker.terminate()
        poll("stopping, or ended", lambda: worker.poll() is not None or "stopping" in _kinds(folder))
        if (folder / "began").exists():
            time.sleep(1.0)  # nothing shows when the process of the task has read that it is to stop
        (folder / "go").touch()
        code = worker.wait(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    return _wrong(folder, url or str(folder / "fleet"), code)


def _wrong(folder: Path, url: str, code: int) -> str:
    kinds = _kinds(folder)
    began = (folder / "began").read_text().split() if (folder / "began").exists() else []
    queue = limpet.open(url, read_only=True).queue("wait")
    assert isinstance(queue, limpet.queue.BucketQueue)
    storage = queue.storage
    leases = [stat.key for stat in storage.store.list(storage.keys.pending) if stat.key.endswith("/lease.json")]
    held = [key for key in leases if storage.lease(key.rsplit("/", 2)[1]).read().value.state is State.HELD]  # type: ignore[union-attr]
    if code not in (0, -signal.SIGTERM) or "killed" in (folder / "log").read_text():
        return f"exit code {code}: {(folder / 'log').read_text()}"
    if "ready" not in kinds and (began or leases):
        return f"it claimed {leases} and began {began} without being ready"
    if len(began) > 1:
        return f"it began {began}: one may have run when it was told to stop"
    if held:
        return f"it still holds {held}"
    if kinds.count("done") != len(began):
        return f"{began} began, and {kinds.count('done')} were done"
    return ""


def _try_all(folder: Path, moments: list[Moment], bucket: Bucket | None = None) -> None:
    urls = [bucket.at(f"stop-{uuid4().hex}") if bucket else None for _ in moments]
    folders = [folder / str(n) for n in range(len(moments))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = [*pool.map(_terminated, folders, moments, urls)]
    assert {moment: why for moment, why in zip(moments, wrong, strict=True) if why} == {}


def test_sigterm_at_fifty_moments(tmp_path: Path) -> None:
    _try_all(tmp_path, _moments(50, seed=1))


def test_sigterm_in_a_bucket(tmp_path: Path, seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a bucket claims ahead and deletes in the background: it hands back what it has not begun."""
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    _try_all(tmp_path, [(name, after_s) for name in ("ready", "began") for after_s in (0.0, 0.05, 0.2, 0.5)], seaweedfs)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_sigterm_at_five_hundred_moments(tmp_path: Path) -> None:
    _try_all(tmp_path, _moments(500, seed=2))


def test_a_module_that_takes_long_to_import_does_not_delay_the_stop(tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    worker = _start(folder, SLOW)
    poll("importing", (folder / "importing").exists)
    worker.terminate()
    assert worker.wait(timeout=30) == 0
    assert _kinds(folder) == ["stopping"]


def test_a_worker_process_that_is_told_to_end_while_it_imports_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "told"
    worker = _start(folder, SLOW.replace("time.sleep(60)", "Path('second').exists() or time.sleep(60)"))
    try:
        poll("importing", (folder / "importing").exists)
        (folder / "second").touch()
        [child] = _children(worker.pid)
        os.kill(int(child), signal.SIGTERM)
        poll("ready", lambda: "ready" in _kinds(folder))
        worker.terminate()
        (folder / "go").touch()
        assert worker.wait(timeout=60) == 0
    finally:
        worker.kill()
        worker.wait()
