"""`limpet top` and `limpet work --progress` in a real terminal: tmux draws the screen, the test reads it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from rich.console import Console

import limpet
from cli.harness import Here, limpet_command, poll
from limpet.cli.work import ProgressTable, progress_line
from limpet.kernel import keys
from limpet.testing import drain
from limpet.worker.protocol import EventKind, TaskCounts, WorkerEvent
from support.clock import EPOCH, ManualRuntime

APP = """
import pathlib, time
import limpet
fleet = limpet.open("./fleet")

@fleet.task(max_attempts=1)
def chat(n: int):
    print(f"[red]printed[/red] {n}")
    if n == 0:
        raise ValueError("no")

@fleet.task()
def hang():
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
"""


NOTE_EXIT = 'trap : INT; "$@"; echo $? > exit-code'
"""tmux does not always know with which code a command has ended."""


class Terminal:
    """A tmux server with one window."""

    def __init__(self, folder: Path) -> None:
        tmux = shutil.which("tmux")
        if tmux is None:
            pytest.skip("tmux is not installed")
        self._tmux = [tmux, "-L", f"limpet-{uuid4().hex[:12]}", "-f", "/dev/null"]
        self._folder = folder

    def start(self, *arguments: str, width: int = 100) -> None:
        """Run limpet in a window of 100 by 30."""
        size = ("-x", str(width), "-y", "30", "-c", str(self._folder))
        self._do("new-session", "-d", *size, "sh", "-c", NOTE_EXIT, "sh", *limpet_command(*arguments))
        self._do("set-option", "-g", "remain-on-exit", "on")

    def screen(self) -> str:
        return self._do("capture-pane", "-p")

    def press(self, key: str) -> None:
        self._do("send-keys", key)

    def exit_code(self) -> str:
        """Of the command, once it has ended; empty before."""
        noted = self._folder / "exit-code"
        return noted.read_text().strip() if noted.exists() else ""

    def shows(self, pattern: str) -> bool:
        return re.search(pattern, self.screen(), re.MULTILINE) is not None

    def _do(self, *arguments: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        return subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True, env=env).stdout

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    yield found
    found.close()


def test_top_is_live_and_ends_with_q(terminal: Terminal, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet")
    queue = fleet.queue("enrich", max_attempts=1)
    queue.push({})
    fleet.lock("nightly").acquire()
    terminal.start("top", "-u", "fleet")
    poll("the queue is shown", lambda: terminal.shows(r"^enrich +1 +0 +0 +0 +0 "))
    assert terminal.shows("locks 1 held: nightly by ")
    queue.push({})
    poll("a push is shown", lambda: terminal.shows(r"^enrich +2 +0 "))
    with queue.claim() as claim:
        for task in claim:
            task.fail("no")
    poll("a failure is shown", lambda: terminal.shows(r"^enrich +1 +0 +0 +0 +1 .* 0\.2 .*no worker"))
    assert terminal.shows("1 alert")
    assert terminal.shows("^alert enrich: 1 task failed, and --max-failed is 0")
    terminal.press("q")
    poll("it has ended", terminal.exit_code)
    assert terminal.exit_code() == "0"


@pytest.mark.parametrize(("width", "columns"), [(50, "pending failed 6 min"), (80, "pending running failed oldest")])
def test_a_narrow_terminal_has_fewer_columns_and_every_name(
    terminal: Terminal, tmp_path: Path, width: int, columns: str
) -> None:
    limpet.open(tmp_path / "fleet").queue("enrich").push({})
    terminal.start("top", "-u", "fleet", width=width)
    poll("the queue is shown", lambda: terminal.shows(r"^enrich +1 +0"))
    assert terminal.shows("^queue +" + " +".join(columns.split()))


def test_without_a_terminal_top_prints_one_reading(here: Here, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet")
    fleet.queue("q").push({})
    fleet.store.put(keys.Key("queues/%1b[31mbad/pending/x/task.json"), b"{")
    done = here("top", "-u", "fleet")
    assert (done.code, done.err) == (0, "")
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert rows[1][:3] == ["queue", "pending", "running"]
    assert [row[:2] for row in rows[2:4]] == [["\\x1b[31mbad", "1"], ["q", "1"]]
    assert done.out.splitlines()[-1].startswith("This has taken ")
    assert here("top", "-u", "nowhere").code == 1


def test_a_suspended_task_is_shown_with_its_reason(here: Here, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet")

    @fleet.task("orders")
    def order(number: int) -> str:
        return str(limpet.wait_signal(f"approved-{number}"))

    order.push(7)
    drain(fleet)
    done = here("top", "-u", "fleet")
    assert (done.code, done.err) == (0, "")
    assert "suspended 1 of orders: waiting for the signal 'approved-7'" in done.out.splitlines()
    [shown] = json.loads(here("status", "-u", "fleet", "--json").out)["queues"]
    assert (shown["suspended"], shown["resting"], shown["pending"]) == (1, 1, 1)


def test_progress_is_told_by_queue_and_worker_and_survives_prints(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    fleet = limpet.open(tmp_path / "fleet")
    for n in range(5):
        fleet.queue("chat").push({"n": n})
    fleet.queue("hang").push({}, id="long-one")
    terminal.start("work", "app:fleet", "-t", "2", "--progress")
    poll("what runs is shown", lambda: terminal.shows(r"^hang +1 +0 +0 +0 +- +long-one \d+ s"))
    poll("what ended is shown", lambda: terminal.shows(r"^chat +0 +4 +1 +0 +0\.\d+ s"))
    poll("the worker is shown", lambda: terminal.shows(r"^\S+:\d+ +1 +4 +1 +0 "))
    poll("all is printed", lambda: terminal.screen().count("[red]printed[/red]") == 5)
    assert terminal.shows(r"^\[red\]printed\[/red\] 3$")
    poll("the summary is shown", lambda: terminal.shows(r"^4 done, 1 failed, 0 retried \u00b7 1 in flight"))
    (tmp_path / "go").touch()
    poll("it goes on", lambda: terminal.shows(r"^hang +0 +1 "))
    terminal.press("C-c")
    poll("it has ended", terminal.exit_code)
    assert terminal.exit_code() == "0"
    assert terminal.shows(r"^5 done, 1 failed, 0 retried in ")


def _event(kind: EventKind, worker: str, id_: str = "", note: str = "") -> WorkerEvent:
    at = EPOCH + timedelta(seconds=1)
    return WorkerEvent(kind=kind, at=at, worker=worker, queue="q" if id_ else "", id=id_, seconds=0.5, note=note)


def test_a_suspended_task_runs_no_longer() -> None:
    table = ProgressTable(ManualRuntime())
    table.hear(_event("started", "h:1/1", "waits"))
    table.hear(_event("suspended", "h:1/1", "waits", note="sleeping"))
    table.hear(_event("started", "h:1/2", "runs"))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table.rendered(progress_line(TaskCounts(suspended=1, in_flight=1), None)))
    said = console.export_text()
    assert re.search(r"^q +1 +0 .* runs 0 s *$", said, re.MULTILINE)
    assert "waits" not in said
    assert "0 done, 0 failed, 0 retried, 1 suspended · 1 in flight" in said


def test_a_process_that_dies_runs_nothing_any_more() -> None:
    table = ProgressTable(ManualRuntime())
    for n in range(20):
        table.hear(_event("started", f"h:{n}/1", f"t{n}"))
    table.hear(_event("crashed", "h:99", note="process 7 was killed by SIGKILL; another one starts in 0.5 s"))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table.rendered("the summary"))
    said = console.export_text()
    assert re.search(r"^q +19 +0 ", said, re.MULTILINE)
    assert "h:7 " not in said
    assert "and 11 more" in said
    assert said.rstrip().endswith("the summary")
