"""How soon the dashboard shows a large fleet: a million pending tasks in one queue, and 999 other queues.

    .venv/bin/python bench/ui.py

Once on a store that answers each request after 30 ms and whose objects exist only while they are listed, and once on a
directory, which is filled first (4 GB of memory on tmpfs, some minutes). Prints the time from the first byte that a
browser asks for until its first overview is complete, the requests of the server, and with Debian's chromium the time
until the table of queues is visible.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "tests")  # not this folder: its queue.py would hide that of Python

import limpet  # noqa: E402
from app.test_overview import HugeStore  # noqa: E402
from browser.conftest import FLAGS  # noqa: E402
from limpet.app import Fleet  # noqa: E402
from limpet.app.record import fresh  # noqa: E402
from limpet.kernel.keys import Key  # noqa: E402
from limpet.kernel.runtime import system, ulid  # noqa: E402
from limpet.kernel.store import MeteredStore  # noqa: E402
from limpet.kernel.store.api import Blob, Stat  # noqa: E402
from limpet.kernel.store.probe import Findings  # noqa: E402
from ui.conftest import OWN, DashboardServer  # noqa: E402

__all__ = ["main"]

DELAY_S = 0.03
PAGE = 1000
RUNS = 5
EACH = 400
"""Tasks in each other queue of the directory: tmpfs has room for three million names."""
SEEN = """new Promise((done) => {
  const look = () => (document.querySelector("main td.name a") ? done(performance.now()) : requestAnimationFrame(look));
  look();
})"""
"""The time since the navigation at which the table of queues is there."""
FILES = ("", "/static/style.css", "/static/app.js", "/static/dom.js", "/static/api.js", "/api/config")


class FarHugeStore(HugeStore):
    """The fleet of the tests with a million tasks; each request, and each page of a listing, takes 30 ms."""

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        for n, stat in enumerate(super().list(prefix, after=after)):
            if n % PAGE == 0:
                time.sleep(DELAY_S)
            yield stat

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        time.sleep(DELAY_S)
        return super().list_dirs(prefix)

    def get(self, key: Key, **options: Any) -> Blob:
        time.sleep(DELAY_S)
        return super().get(key, **options)


def _fill(folder: Path, tasks: int, queues: int) -> None:
    """Make a directory with so many pending tasks, in the layout that a push writes."""
    fleet = limpet.open(folder, durability="os")
    fleet.queue("q000").push({"domain": "example.com"})
    (made,) = (folder / "queues/q000/pending").iterdir()
    task = made / "task.json"
    now_ms = int(time.time() * 1000) - tasks

    def fill(queue: str, count: int) -> None:
        pending = folder / "queues" / queue / "pending"
        pending.mkdir(parents=True, exist_ok=True)
        for n in range(count):
            entry = f"{pending}/{ulid(now_ms + n, n)}"
            os.mkdir(entry)
            os.link(task, f"{entry}/task.json")

    fill("q000", tasks - 1)
    for n in range(1, queues):
        fill(f"q{n:03}", EACH)


def _opened_s(url: str) -> float:
    """What a browser does before it can show the fleet: the files, then the first overview of the live feed."""
    began_s = time.monotonic()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    for path in FILES:
        connection.request("GET", f"/ui{path}", headers=OWN)
        connection.getresponse().read()
    connection.request("GET", "/ui/api/events", headers=OWN)
    stream = connection.getresponse()
    while not stream.readline().startswith(b"data: "):
        continue
    opened_s = time.monotonic() - began_s
    connection.close()
    return opened_s


def _visible_s(url: str) -> float | None:
    """Until the table of queues is visible in Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        page = browser.new_page()
        page.goto(f"{url}/ui")
        seen_ms: float = page.evaluate(SEEN)  # Playwright itself looks every half second only
        browser.close()
    return seen_ms / 1000


def _measure(name: str, fleet_of: Any) -> None:
    """Serve the fleet afresh for each run: the server has read nothing before."""
    opened = []
    cpu_s = 0.0
    spent: dict[str, int] = {}
    for run in range(RUNS):
        fleet: Fleet = fleet_of()
        before = fleet.meter.snapshot()
        server = DashboardServer(fleet)
        began_s = time.process_time()
        opened.append(_opened_s(server.url))
        cpu_s = time.process_time() - began_s
        spent = dict((fleet.meter.snapshot() - before).requests)
        seen_s = None
        if run == RUNS - 1:
            server.close()
            server = DashboardServer(fleet_of())
            seen_s = _visible_s(server.url)
        server.close()
    opened.sort()
    middle_s = opened[len(opened) // 2]
    print(f"{name}: {middle_s:.2f} s (of {RUNS}: {opened[0]:.2f} to {opened[-1]:.2f}), CPU {cpu_s:.2f} s, {spent}")
    if seen_s is not None:
        print(f"{name}: visible in Chromium after {seen_s:.2f} s")


def _far() -> Fleet:
    runtime = system()
    found = Findings(conditional=True, etag_style="quoted", at="", by="")
    return Fleet(MeteredStore(FarHugeStore(runtime), runtime=runtime), "memory://far", fresh(found), runtime)


def main() -> None:
    """Measure both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", type=int, default=1_000_000, help="pending tasks in the largest queue")
    options.add_argument("--queues", type=int, default=1000, help="queues")
    options.add_argument("--folder", default="/dev/shm", help="where to make the directory")
    given = options.parse_args()
    _measure("30 ms per request", _far)
    folder = Path(tempfile.mkdtemp(prefix="limpet-ui-", dir=given.folder))
    try:
        _fill(folder, given.tasks, given.queues)
        _measure(f"directory in {given.folder}", partial(limpet.open, folder))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
