"""`limpet demo` keeps its promises, says so from what it reads back, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import limpet
from cli.harness import Here, Spawn, alive, poll
from limpet.app import Fleet
from limpet.demo.report import (
    EndedTasks,
    Rows,
    ask,
    by_worker,
    count_records,
    count_tasks,
    read_records,
    read_tasks,
    runs_in,
)
from limpet.demo.screen import DemoScreen, DemoState
from limpet.demo.tasks import INDEX, KEY, DemoResult, expected, payload, square
from support.servers.process import Bucket

REPORT = (
    r"^ +\d+\.\d s  \w+  killed \(pid \d+\), holding batch \d+ with token 1$",
    r"^ +\d+\.\d s  \w+  stopped, holding batch \d+ with token 1$",
    r"^ +\d+\.\d s  (?:eve|fay)  killed \(pid \d+\), while it folded results into shards$",
    r"^ +\d+\.\d s       batch \d+ was already written with token 2; token 1 is too old$",
    r"^  ok    lost       0 tasks; 0 objects still pending$",
    r"^  ok    results    [\d,]+ read back, 0 wrong$",
    r"^  ok    index      ([\d,]+) records = \1 completed, 0 wrong, 0 missing$",
    r"^  ok    compiled   at least [\d,]+ objects merged by [\d,]+ folds; 0 still wait$",
    r"^  ok    sql        the table above, held against a scan$",
    r"^  ok    taken over batch \d+ after \d+\.\d s and batch \d+ after \d+\.\d s$",
    r"^  ok    fencing    1 late write refused$",
    r"^        requests   [\d,]+ for tasks: [\d,]+ PUT, ",
    r"^                   [\d,]+ for the index: [\d,]+ (?:PUT|GET), ",
    r"^        price      \$0\.\d{5} for tasks, \$0\.\d{5} for the index, on S3 ",
    r"^                   \$0\.\d{5} to read it all back$",
    r"^All as promised, in \d+ s\.",
)
AGAIN = r"^        run twice  (\d+) tasks: (\d+) by Retry, (\d+) whose worker died or slept$"


def _pids(out: str, do: str = "(?:work|compile)") -> list[int]:
    return [int(pid) for line in re.findall(rf"pids: (.*) {do}$", out, re.M) for pid in re.findall(r"\d+", line)]


def _check_report(out: str) -> None:
    assert [len(re.findall(said, out, re.M)) for said in REPORT] == [1] * len(REPORT), out
    assert "FAIL" not in out
    assert "\x1b" not in out
    [(ran, asked, died)] = re.findall(AGAIN, out, re.M)
    assert int(ran) == int(asked) + int(died)
    assert int(ran) >= 2
    assert len(_pids(out)) == 6
    assert not [pid for pid in _pids(out) if alive(pid)]
    table = out.partition("\n               worker   records")[2].splitlines()
    assert [row.split()[0] for row in table[1:5]] == ["ada", "ben", "cyd", "dot"]


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
    demo = spawn("demo", "--keep")
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    _check_report(out)
    assert re.search(r"^  ok    tasks      5,000 pushed = 4,992 completed \+ 8 failed$", out, re.M)
    assert re.search(r"^        on SQS     tasks: \$0\.00600, in tens \$0\.00060; ", out, re.M)
    [home] = temp.iterdir()
    assert f"limpet status --url {home}/fleet\n" in out
    stats = limpet.open(home / "fleet").queue("demo").stats()
    assert (stats.pending, stats.completed, stats.failed) == (0, 4992, 8)
    assert sum(runs_in(home).values()) >= 5000
    records = [*limpet.open(home / "fleet").index(INDEX, DemoResult).scan()]
    assert len(records) == 4992
    assert all(each.square == each.number**2 for each in records)
    assert f'limpet index sql "from {INDEX} limit 5" --url {home}/fleet\n' in out
    assert f"limpet index stats {INDEX} --url {home}/fleet\n" in out


def test_demo_removes_its_folder(spawn: Spawn, temp: Path) -> None:
    demo = spawn("demo", "--tasks", "2000")
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    assert [*temp.iterdir()] == []
    assert "limpet demo --keep" in out


@pytest.mark.full
def test_demo_in_a_bucket(spawn: Spawn, seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    demo = spawn("demo", "--tasks", "2000", "--url", seaweedfs.at(f"demo-{os.getpid()}"))
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    _check_report(out)
    assert re.search(r"^  ok    tasks      2,000 pushed = 1,997 completed \+ 3 failed$", out, re.M)


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return True


def _at_rest(root: Path) -> list[str]:
    """The shards that no compiler works on: what waits for one of them was not read by any."""
    locks = {path.stem: json.loads(path.read_bytes())["state"] for path in (root / "shards").glob("*.lock")}
    return [path.stem for path in (root / "shards").glob("*.usv") if locks.get(path.stem, "free") == "free"]


def _compiled(root: Path) -> list[Path]:
    return [path for path in (root / "shards").glob("*.usv") if path.stat().st_size]


def _waiting(root: Path) -> list[Path]:
    return [
        path for shard in _at_rest(root) for at in ("inbox", "packs") for path in (root / at / shard).rglob("*.usv")
    ]


def _remove_records(root: Path, compilers: list[int]) -> int:
    """Remove records that wait, and one that does not, while no compiler can be in the middle of reading them."""
    poll("some shards have records", lambda: len(_compiled(root)) > 20)
    for pid in compilers:
        with suppress(ProcessLookupError):  # one of them may have been killed by now
            os.kill(pid, signal.SIGSTOP)
    poll("the compilers stand still", lambda: all(map(_stopped, compilers)))
    poll("something waits", lambda: _waiting(root))
    removed = 1
    for path in _waiting(root):
        removed += path.read_bytes().count(b"\n")
        path.unlink()
    shard = next(path for path in _compiled(root) if path.stem in _at_rest(root))
    fresh = shard.with_suffix(".new")
    fresh.write_bytes(b"".join(shard.read_bytes().splitlines(keepends=True)[1:]))
    fresh.replace(shard)
    for pid in compilers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return removed


@pytest.mark.full
def test_demo_fails_when_something_is_lost(spawn: Spawn) -> None:
    """A hand from outside removes a batch that waits, and then records."""
    demo = spawn("demo", "--tasks", "2000", "--url", "place")
    out = _heard(demo, "is killed with -9")
    pending = Path("place").glob("*/queues/*/pending/*/tasks.jsonl")
    waiting = [path for path in pending if not (path.parent / "lease.json").exists()]
    waiting[-1].unlink()
    out += _heard(demo, "is stopped, like a laptop")
    [root] = Path("place").glob(f"*/indexes/{INDEX}")
    removed = _remove_records(root, _pids(out, "compile"))
    more, err = demo.communicate()
    assert (demo.returncode, err) == (1, "")
    assert re.search(r"^  FAIL  lost       100 tasks; 0 objects still pending$", more, re.M), out + more
    assert re.search(r"^  FAIL  tasks      2,000 pushed = ", more, re.M)
    missing = re.search(r"^  FAIL  index      [\d,]+ records = [\d,]+ completed, 0 wrong, (\d+) missing$", more, re.M)
    assert missing is not None, out + more
    assert 1 <= int(missing[1]) <= removed  # a batch that is run again puts its records again
    assert "All as promised" not in more
    assert "Something did not go as promised" in more


@pytest.mark.full
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
    pids = _pids(_heard(demo, " compile\n"))
    demo.kill()
    poll("all processes have ended", lambda: not any(map(alive, pids)))


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
GOOD = EndedTasks(
    completed={IDS[n]: expected(n) for n in range(1300) if expected(n) is not None},
    failed={IDS[n]: "poison" for n in range(1300) if expected(n) is None},
    pending=0,
)
RUNS = {n: 2 if payload(n).get("kind") == "flaky" else 1 for n in range(1300)}


def test_findings_of_a_sound_run() -> None:
    found = count_tasks(IDS, GOOD, RUNS)
    assert found.sound
    assert (found.pushed, found.completed, found.failed) == (1300, 1298, 2)
    assert (found.ran_again, found.asked_for) == (10, 10)
    again = count_tasks(IDS, GOOD, {**RUNS, 7: 2, 8: 3})
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
def test_findings_of_an_unsound_run(ended: EndedTasks, lost: int, twice: int, wrong: int) -> None:
    found = count_tasks(IDS, ended, RUNS)
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
    ended = read_tasks(fleet)
    assert ended.failed == {ids[312]: "312 is poison"}
    assert count_tasks(ids, ended, {}).sound
    assert ended.pending == 0


AT = datetime(2026, 1, 1, tzinfo=UTC)
STORED: list[dict[str, Any]] = [
    {KEY: n, "square": n**2, "worker": "ada" if n % 2 else "ben", "updated_at": AT.replace(second=n % 60)}
    for n in range(1300)
    if expected(n) is not None
]


def test_the_records_of_a_sound_run() -> None:
    found = count_records(IDS, GOOD, STORED)
    assert (found.sound, found.records, found.wrong, found.missing) == (True, 1298, 0, 0)


@pytest.mark.parametrize(
    ("records", "wrong", "missing"),
    [
        (STORED[1:], 0, 1),
        ([*STORED, STORED[0]], 1, 0),
        ([*STORED, {**STORED[0], KEY: 312}], 1, 0),
        ([*STORED, {**STORED[0], KEY: 1300}], 1, 0),
        ([{**STORED[0], "square": 1}, *STORED[1:]], 1, 0),
        ([], 0, 1298),
    ],
    ids=["missing", "twice", "of a failed task", "of no task", "wrong", "none at all"],
)
def test_the_records_of_an_unsound_run(records: list[dict[str, Any]], wrong: int, missing: int) -> None:
    found = count_records(IDS, GOOD, records)
    assert not found.sound
    assert (found.records, found.wrong, found.missing) == (len(records), wrong, missing)


def test_the_index_is_read_back_with_what_waits() -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(INDEX, DemoResult, key=KEY)
    index.put_many(DemoResult(n, n**2, "ada") for n in range(10))
    index.compile(full=True)
    assert read_records(fleet)[1] == 0
    index.put(DemoResult(3, 9, "ben"))
    indexed, waiting = read_records(fleet)
    assert waiting == 1
    assert count_records(IDS[:10], GOOD, indexed).sound
    assert [row[:3] for row in by_worker(indexed)] == [("ada", 9, 276), ("ben", 1, 9)]


def _asked(fleet: Fleet) -> tuple[Rows | None, str]:
    out = StringIO()
    screen = DemoScreen(Console(file=out, width=100, highlight=False), DemoState(0, {}))
    return ask(screen, fleet, {"ada": "cyan"}), out.getvalue()


@pytest.fixture
def some_results() -> Fleet:
    """A fleet whose index has a few records."""
    fleet = limpet.open("memory://")
    index = fleet.index(INDEX, DemoResult, key=KEY)
    index.put_many(DemoResult(n, n**2, "ada" if n % 2 else "ben") for n in range(100))
    index.compile(full=True)
    return fleet


def test_sql_answers_as_a_scan_does(some_results: Fleet) -> None:
    answer, said = _asked(some_results)
    assert answer == by_worker(some_results.index(INDEX).scan())
    assert [row[:3] for row in answer or ()] == [("ada", 50, 166650), ("ben", 50, 161700)]
    assert re.search(r"^ {15}select worker, ", said, re.M)
    assert re.search(r"^ {15}ada +50 +166,650 +\d\d:\d\d:\d\d\.\d{3}$", said, re.M)


def test_without_duckdb_the_same_table_is_scanned(some_results: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    _, with_sql = _asked(some_results)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    answer, said = _asked(some_results)
    assert answer is None
    rows = [line for line in with_sql.splitlines() if re.match(r" {15}(worker|ada|ben) ", line)]
    assert said.splitlines() == [*rows, "               worked out by a scan; for SQL: pip install 'limpet[sql]'"]


def test_the_latest_of_each_worker() -> None:
    assert by_worker(STORED[:4]) == [
        ("ada", 2, 10, AT.replace(second=3)),
        ("ben", 2, 4, AT.replace(second=2)),
    ]
