"""`limpet demo` keeps its promises, says so from what it reads back, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import limpet
from cli.harness import Here, Spawn, alive, poll
from limpet.app import Fleet
from limpet.demo import CUBES, FANNED, INDEX, KEY, DemoResult, expected, payload
from limpet.demo.report import (
    DemoScreen,
    DemoState,
    Rows,
    ask,
    by_worker,
    count_records,
    count_tasks,
    read_notes,
    read_results,
)
from limpet.queue import Result
from support.servers.process import Bucket

REPORT = (
    r"^ +\d+\.\d s   worker \d+ killed while it held batch \d+$",
    r"^ +\d+\.\d s   worker \d+ stopped while it held batch \d+$",
    r"^ +\d+\.\d s   worker \d+ killed while it merged records into shards$",
    r"^ +\d+\.\d s   the durable task is suspended: waiting for \d+(?: of \d+)? tasks in 'demo-cube'$",
    r"^ +\d+\.\d s   worker \d+ killed while it held 100 of them$",
    r"^ +\d+\.\d s   all of them have ended: worker \d+ went on with the durable task, and it is done$",
    r"^ +\d+\.\d s   worker \d+ is refused: cells/slow-\d+\.json was already written with token 2; token 1 is too old$",
    r"^  ok    lost       0 tasks; 0 still pending$",
    r"^  ok    results    [\d,]+ read back, 0 wrong$",
    r"^  ok    index      ([\d,]+) records = \1 completed, 0 wrong, 0 missing$",
    r"^  ok    compiled   [\d,]+ objects merged at the end; 0 left$",
    r"^  ok    sql        the table above equals a scan of the index$",
    r"^  ok    takeovers  batch \d+ after \d+\.\d s and batch \d+ after \d+\.\d s$",
    r"^  ok    fencing    1 late write refused$",
    r"^  ok    durable    1 attempt, the sum of 200 cubes is 396,010,000; a batch was taken over after \d+\.\d s$",
    r"^        requests   [\d,]+ for tasks: [\d,]+ PUT, ",
    r"^                   [\d,]+ for the index: [\d,]+ (?:PUT|GET), ",
    r"^        price      \$0\.\d{5} for tasks, \$0\.\d{5} for the index, on S3 ",
    r"^                   \$0\.\d{5} to read everything back$",
    r"^Every check passed, in \d+ s\.",
)
AGAIN = r"^        run twice  (\d+) tasks: (\d+) by Retry, (\d+) whose worker died or was stopped$"


def _pids(out: str) -> list[int]:
    return [int(pid) for pid in re.findall(r" s   worker (\d+) started$", out, re.M)]


def _check_report(out: str) -> None:
    assert [len(re.findall(said, out, re.M)) for said in REPORT] == [1] * len(REPORT), out
    assert "FAIL" not in out
    assert "\x1b" not in out
    [(ran, asked, died)] = re.findall(AGAIN, out, re.M)
    assert int(ran) == int(asked) + int(died)
    assert int(ran) >= 2
    assert 6 <= len(_pids(out)) <= 9
    assert not [pid for pid in _pids(out) if alive(pid)]
    table = out.partition("\n           worker   records")[2].splitlines()
    workers = {int(row.split()[0]) for row in table[1:] if re.match(r" {11}\d+ ", row)}
    assert workers
    assert workers <= {*_pids(out)}


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
    assert re.search(r"^        on SQS     the same tasks: \$0\.00600, in batches of ten \$0\.00060; ", out, re.M)
    [home] = temp.iterdir()
    assert f"limpet status --url {home}/fleet\n" in out
    assert f"iceberg_scan('file://{home}/fleet/warehouse/" in out
    stats = limpet.open(home / "fleet").queue("demo").stats()
    assert (stats.pending, stats.completed, stats.failed) == (0, 4992, 8)
    assert sum(read_notes(home).runs.values()) >= 5000
    records = [*limpet.open(home / "fleet").index(INDEX, DemoResult).scan()]
    assert len(records) == 4992
    assert all(each.square == each.number**2 for each in records)
    assert f'limpet index sql "from {INDEX} limit 5" --url {home}/fleet\n' in out
    assert f"limpet index stats {INDEX} --url {home}/fleet\n" in out
    cubes = limpet.open(home / "fleet").queue(CUBES).stats()
    assert (cubes.pending, cubes.completed) == (0, FANNED)


@pytest.mark.full
def test_demo_removes_its_folder(spawn: Spawn, temp: Path) -> None:
    demo = spawn("demo", "--tasks", "2000")
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    assert [*temp.iterdir()] == []
    assert "limpet demo --keep" in out
    assert "iceberg_scan" not in out, "a query of a folder that is gone"


def test_a_long_line_goes_on_below_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = Console(width=40, force_terminal=True, color_system=None, highlight=False)
    screen = DemoScreen(out, DemoState(1))
    screen.row("   1.0 s   ", "[bold]worker 7[/bold] is refused: another one has written")
    screen.fact("durable", "1 attempt, and a sum that takes two lines", True)
    assert capsys.readouterr().out.splitlines() == [
        "   1.0 s   worker 7 is refused: another ",
        "           one has written              ",
        "  ok    durable    1 attempt, and a sum ",
        "                   that takes two lines ",
    ]


@pytest.mark.full
def test_demo_in_a_bucket(spawn: Spawn, seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    demo = spawn("demo", "--tasks", "2000", "--url", seaweedfs.at(f"demo-{os.getpid()}"))
    out, err = demo.communicate()
    assert (demo.returncode, err) == (0, ""), out
    _check_report(out)
    assert re.search(r"^  ok    tasks      2,000 pushed = 1,997 completed \+ 3 failed$", out, re.M)


def _remove_records(root: Path) -> int:
    """Remove records that wait for a compiler, which may have read some of them already; how many there were."""
    removed = 0
    for path in [path for at in ("inbox", "packs") for path in (root / at).rglob("*.usv")]:
        with suppress(FileNotFoundError):
            removed += path.read_bytes().count(b"\n")
            path.unlink()
    return removed


@pytest.mark.full
def test_demo_fails_when_something_is_lost(spawn: Spawn) -> None:
    """A hand from outside removes a batch that waits, and then records."""
    demo = spawn("demo", "--tasks", "2000", "--url", "place")
    out = _heard(demo, "is killed with kill -9")
    pending = Path("place").glob("*/queues/demo/pending/*/tasks.jsonl")
    waiting = [path for path in pending if not (path.parent / "lease.json").exists()]
    next(path for path in waiting if b"slow" not in path.read_bytes()).unlink()
    out += _heard(demo, " stopped while it held batch ")
    [root] = Path("place").glob(f"*/indexes/{INDEX}")
    removed = _remove_records(root)
    more, err = demo.communicate()
    assert (demo.returncode, err) == (1, "")
    assert re.search(r"^  FAIL  lost       100 tasks; 0 still pending$", more, re.M), out + more
    assert re.search(r"^  FAIL  tasks      2,000 pushed = ", more, re.M)
    missing = re.search(r"^  FAIL  index      [\d,]+ records = [\d,]+ completed, 0 wrong, (\d+) missing$", more, re.M)
    assert missing is not None, out + more
    assert 1 <= int(missing[1]) <= removed  # a batch that is run again puts its records again
    assert "Every check passed" not in more
    assert "A check failed" in more


@pytest.mark.full
def test_an_interrupt_ends_every_process_and_says_where_things_are(spawn: Spawn, temp: Path) -> None:
    demo = spawn("demo")
    out = _heard(demo, " stopped while it held batch ")
    demo.send_signal(signal.SIGINT)
    more, err = demo.communicate()
    assert (demo.returncode, err) == (130, "")
    [home] = temp.iterdir()
    assert more.endswith(f"interrupted; what was written stays in {home}/fleet\n")
    assert not [pid for pid in _pids(out) if alive(pid)]


def test_workers_end_when_the_demo_is_killed(spawn: Spawn) -> None:
    demo = spawn("demo", "--tasks", "2000", "--url", "place")
    pids = _pids(_heard(demo, " started\n"))
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


GOOD = [
    Result(f"x.{n}", "failed", error="poison") if expected(n) is None else Result(f"x.{n}", "completed", expected(n))
    for n in range(1300)
]
RUNS = {n: 2 if payload(n).get("kind") == "flaky" else 1 for n in range(1300)}


def test_findings_of_a_sound_run() -> None:
    found = count_tasks(GOOD, RUNS)
    assert (found.completed, found.failed, found.lost, found.wrong) == (1298, 2, 0, 0)
    assert (found.ran_again, found.asked_for) == (10, 10)
    again = count_tasks(GOOD, {**RUNS, 7: 2, 8: 3})
    assert (again.lost, again.wrong, again.ran_again, again.asked_for) == (0, 0, 12, 10)


@pytest.mark.parametrize(
    ("n", "result", "lost", "wrong"),
    [
        (7, Result("x.7", "unknown"), 1, 0),
        (7, Result("x.7", "pending"), 1, 0),
        (7, Result("x.7", "failed", error="no"), 0, 1),
        (7, Result("x.7", "completed", 50), 0, 1),
        (7, Result("x.7", "completed"), 0, 1),
        (312, Result("x.312", "completed", 312**2), 0, 1),
    ],
    ids=["lost", "pending", "failed", "wrong result", "no result", "completed poison"],
)
def test_findings_of_an_unsound_run(n: int, result: Result, lost: int, wrong: int) -> None:
    found = count_tasks([*GOOD[:n], result, *GOOD[n + 1 :]], RUNS)
    assert (found.lost, found.wrong) == (lost, wrong)


def test_results_are_read_back() -> None:
    fleet = limpet.open("memory://")
    queue = fleet.queue("demo")
    ids = queue.push_many(map(payload, range(330)), batch=100)
    while claim := queue.claim():
        with claim:
            for task in claim:
                if task.payload.get("kind") == "poison":
                    task.fail("poison")
                else:
                    task.done(task.payload["n"] ** 2)
    results = read_results(fleet, ids)
    assert [result.id for result in results] == [*ids]
    found = count_tasks(results, {})
    assert (found.completed, found.failed, found.lost, found.wrong) == (329, 1, 0, 0)


def test_the_notes_of_a_killed_worker_count_up_to_its_last_whole_line(tmp_path: Path) -> None:
    line = '{"n": %s, "tasks": {"put": %d}, "index": {"get": 1}}\n'
    (tmp_path / "1.jsonl").write_text(line % (7, 1) + line % (8, 2) + '{"n": 9, "ta')
    (tmp_path / "2.jsonl").write_text(line % (7, 5) + line % ("null", 6))
    notes = read_notes(tmp_path)
    assert (notes.runs, notes.tasks, notes.index) == ({7: 2, 8: 1}, {"put": 8}, {"get": 2})


AT = datetime(2026, 1, 1, tzinfo=UTC)
STORED: list[dict[str, Any]] = [
    {KEY: n, "square": n**2, "worker": "ada" if n % 2 else "ben", "updated_at": AT.replace(second=n % 60)}
    for n in range(1300)
    if expected(n) is not None
]


def test_the_records_of_a_sound_run() -> None:
    found = count_records(GOOD, STORED)
    assert (found.records, found.wrong, found.missing) == (1298, 0, 0)


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
    found = count_records(GOOD, records)
    assert (found.records, found.wrong, found.missing) == (len(records), wrong, missing)


def _asked(fleet: Fleet) -> tuple[Rows | None, str]:
    out = StringIO()
    screen = DemoScreen(Console(file=out, width=100, highlight=False), DemoState(0))
    return ask(screen, fleet), out.getvalue()


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
    assert re.search(r"^ {11}select worker, ", said, re.M)
    assert re.search(r"^ {11}ada +50 +166,650 +\d\d:\d\d:\d\d\.\d{3}$", said, re.M)


def test_without_duckdb_the_same_table_is_scanned(some_results: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    _, with_sql = _asked(some_results)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    answer, said = _asked(some_results)
    assert answer is None
    rows = [line for line in with_sql.splitlines() if re.match(r" {11}(worker|ada|ben) ", line)]
    assert said.splitlines() == [*rows, "           computed by a scan; for SQL: pip install 'limpet[sql]'"]


def test_the_latest_of_each_worker() -> None:
    assert by_worker(STORED[:4]) == [("ada", 2, 10, AT.replace(second=3)), ("ben", 2, 4, AT.replace(second=2))]
