"""`limpet demo` keeps its promises, says so from what it reads back, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, Spawn, alive, poll
from limpet.cli.demo_report import Ended, find, read_back, runs_in
from limpet.cli.demo_tasks import expected, payload, square
from servers.process import Bucket

REPORT = (
    r"^ +\d+\.\d s  (\w+)  killed \(pid \d+\), holding batch \d+ with token 1$",
    r"^ +\d+\.\d s  (\w+)  stopped, holding batch \d+ with token 1$",
    r"^ +\d+\.\d s       batch \d+ was already written with token 2; token 1 is too old$",
    r"^  ok    lost       0 tasks; 0 objects still pending$",
    r"^  ok    results    [\d,]+ read back, 0 wrong$",
    r"^  ok    taken over batch \d+ after \d+\.\d s and batch \d+ after \d+\.\d s$",
    r"^  ok    fencing    1 late write refused$",
    r"^        requests   [\d,]+: [\d,]+ PUT, ",
    r"^        price      \$0\.\d{5} on S3, and \$0\.\d{5} to read it all back",
    r"^All as promised, in \d+ s\.",
)
AGAIN = r"^        run twice  (\d+) tasks: (\d+) by Retry, (\d+) whose worker died or slept$"


def _pids(out: str) -> list[int]:
    [line] = re.findall(r"pids: (.*)", out)
    return [int(each.split()[1]) for each in line.split(", ")]


def _check_report(out: str) -> None:
    assert [len(re.findall(said, out, re.M)) for said in REPORT] == [1] * len(REPORT), out
    assert "FAIL" not in out
    assert "\x1b" not in out
    [(ran, asked, died)] = re.findall(AGAIN, out, re.M)
    assert int(ran) == int(asked) + int(died)
    assert int(ran) >= 2
    assert not [pid for pid in _pids(out) if alive(pid)]


def _heard(demo: subprocess.Popen[str], said: str) -> str:
    """Read up to the line that says it."""
    assert demo.stdout is not None
    out = ""
    for line in demo.stdout:
        out += line
        if said in line:
            return out
    raise AssertionError(out)


@pytest.fixture(autouse=True)
def temp(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demo keeps what it writes."""
    temp = tmp_path_factory.mktemp("temp")
    monkeypatch.setenv("TMPDIR", str(temp))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return temp


def test_demo_reports_what_the_store_holds(spawn: Spawn, temp: Path) -> None:
    demo = spawn("demo")
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    _check_report(out)
    assert re.search(r"^  ok    tasks      5,000 pushed = 4,992 completed \+ 8 failed$", out, re.M)
    assert re.search(r"^        on SQS     \$0\.00600 one by one, \$0\.00060 in tens: ", out, re.M)
    [home] = temp.iterdir()
    assert f"limpet status --url {home}/fleet\n" in out
    stats = limpet.open(home / "fleet").queue("demo").stats()
    assert (stats.pending, stats.completed, stats.failed) == (0, 4992, 8)
    assert sum(runs_in(home).values()) >= 5000


def test_demo_in_a_bucket(spawn: Spawn, seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    demo = spawn("demo", "--tasks", "2000", "--url", seaweedfs.at(f"demo-{os.getpid()}"))
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    _check_report(out)
    assert re.search(r"^  ok    tasks      2,000 pushed = 1,997 completed \+ 3 failed$", out, re.M)


def test_demo_fails_when_a_task_is_lost(spawn: Spawn) -> None:
    """A hand from outside removes a batch that waits."""
    demo = spawn("demo", "--tasks", "2000", "--url", "place")
    out = _heard(demo, "is killed with -9")
    waiting = [path for path in Path("place").rglob("tasks.jsonl") if not (path.parent / "lease.json").exists()]
    waiting[-1].unlink()
    more, err = demo.communicate()
    assert (demo.returncode, err) == (1, "")
    assert re.search(r"^  FAIL  lost       100 tasks; 0 objects still pending$", more, re.M), out + more
    assert re.search(r"^  FAIL  tasks      2,000 pushed = ", more, re.M)
    assert "All as promised" not in more
    assert "Something did not go as promised" in more


def test_an_interrupt_ends_every_process_and_says_where_things_are(spawn: Spawn, temp: Path) -> None:
    demo = spawn("demo")
    out = _heard(demo, "is stopped, like a laptop")
    demo.send_signal(signal.SIGINT)
    more, err = demo.communicate()
    assert (demo.returncode, err) == (130, "")
    [home] = temp.iterdir()
    assert more.endswith(f"interrupted; what was written stays in {home}/fleet\n")
    assert not [pid for pid in _pids(out) if alive(pid)]


def test_workers_end_when_the_demo_is_killed(spawn: Spawn) -> None:
    demo = spawn("demo", "--tasks", "2000", "--url", "place")
    pids = _pids(_heard(demo, "pids: "))
    demo.kill()
    poll("the workers have ended", lambda: not any(map(alive, pids)))


def test_demo_needs_a_store_that_processes_share(here: Here) -> None:
    done = here("demo", "--url", "memory://x")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("limpet: the demo's processes cannot share memory\nhint: ")


def test_demo_fails_where_conditions_are_ignored(
    here: Here, server: Callable[[str], Bucket], monkeypatch: pytest.MonkeyPatch, temp: Path
) -> None:
    rclone = server("rclone")
    for name, value in rclone.env.items():
        monkeypatch.setenv(name, value)
    done = here("demo", "--url", rclone.at(f"demo-{os.getpid()}"))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: the store ignores conditions: ")
    assert [*temp.iterdir()] == []


IDS = [f"x.{n}" for n in range(1300)]
GOOD = Ended(
    completed={IDS[n]: expected(n) for n in range(1300) if expected(n) is not None},
    failed={IDS[n]: "poison" for n in range(1300) if expected(n) is None},
    pending=0,
)
RUNS = {n: 2 if payload(n).get("kind") == "flaky" else 1 for n in range(1300)}


def test_findings_of_a_sound_run() -> None:
    found = find(IDS, GOOD, RUNS)
    assert found.sound
    assert (found.pushed, found.completed, found.failed) == (1300, 1298, 2)
    assert (found.ran_again, found.asked_for) == (10, 10)
    again = find(IDS, GOOD, {**RUNS, 7: 2, 8: 3})
    assert (again.sound, again.ran_again, again.asked_for) == (True, 12, 10)


@pytest.mark.parametrize(
    ("ended", "lost", "twice", "wrong"),
    [
        (replace(GOOD, completed={id_: value for id_, value in GOOD.completed.items() if id_ != "x.7"}), 1, 0, 0),
        (replace(GOOD, failed={}), 2, 0, 0),
        (replace(GOOD, failed={**GOOD.failed, "x.7": "no"}), 0, 1, 1),
        (replace(GOOD, completed={**GOOD.completed, "y.1": 1}), 0, 1, 0),
        (replace(GOOD, completed={**GOOD.completed, "x.7": 50}), 0, 0, 1),
        (replace(GOOD, completed={**GOOD.completed, "x.7": None}), 0, 0, 1),
    ],
    ids=["lost", "failures lost", "in two places", "from nowhere", "wrong result", "no result"],
)
def test_findings_of_an_unsound_run(ended: Ended, lost: int, twice: int, wrong: int) -> None:
    found = find(IDS, ended, RUNS)
    assert not found.sound
    assert (found.lost, found.twice, found.wrong) == (lost, twice, wrong)


def test_receipts_are_read_back_with_their_results() -> None:
    fleet = limpet.open("memory://")
    queue = fleet.queue("demo")
    ids = queue.push_many(map(payload, range(330)), batch=100)
    while claim := queue.claim():
        with claim:
            for task in claim:
                try:
                    task.done(square(task.payload, attempt=2))
                except limpet.Fail as verdict:
                    task.fail(str(verdict))
    ended = read_back(fleet)
    assert ended.failed == {ids[312]: "312 is poison"}
    assert find(ids, ended, {}).sound
    assert ended.pending == 0
