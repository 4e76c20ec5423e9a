"""What `limpet work` makes of a target, and how its lines look."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.cli.work import Log, ProgressTable, json_line, left_of, progress_line, text_line
from limpet.kernel.errors import Invalid, Missing
from limpet.worker.child import jobs_of
from limpet.worker.pool import error_of
from limpet.worker.protocol import (
    Backlog,
    PipeReader,
    StartRefused,
    TaskCounts,
    WorkerEnded,
    WorkerEvent,
    WorkerOrder,
    decode_message,
    encode_line,
)
from support.clock import ManualRuntime

MODULES = {
    "good": """
import limpet
fleet = limpet.open("./fleet")
number = 5
class group:
    @fleet.task("one", max_attempts=7)
    def one(n: int): ...
@fleet.task()
def two(n: int): ...
def plain(n: int): ...
""",
    "empty": "import limpet\nfleet = limpet.open('./fleet')\n",
    "memory": "import limpet\nfleet = limpet.open('memory://')\n@fleet.task()\ndef t(): ...\n",
    "raises": "import json\n\ndef f():\n    json.loads('{')\n\nf()\n",
    "lacks": "import not_there_at_all\n",
    "typo": "x = 1\ndef f(:\n",
    "exits": "import sys\nsys.exit(3)\n",
    "no_url": "import limpet\n\nfleet = limpet.open()\n",
    "locked": "import limpet\nlock = limpet.open('./fleet').lock('x')\nwith lock.hold(), lock.hold(wait_s=0): ...\n",
}


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path) -> Iterator[None]:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    before, path = {*sys.modules}, [*sys.path]
    yield
    sys.path[:] = path
    for name in {*sys.modules} - before:
        if name in MODULES:
            del sys.modules[name]


def _order(target: str | None, *queues: str, handler: str | None = None, url: str | None = None) -> WorkerOrder:
    return WorkerOrder(
        target=target,
        handler=handler,
        url=url,
        queues=[*queues],
        threads=1,
        burst=True,
        max_tasks=None,
        grace_s=1.0,
        routine=True,
        count=False,
    )


def _names(order: WorkerOrder) -> list[str]:
    return [job.queue.name for job in jobs_of(order)]


def test_a_fleet_a_task_and_what_lies_deeper() -> None:
    assert _names(_order("good:fleet")) == ["one", "two"]
    assert _names(_order("good:two")) == ["two"]
    assert _names(_order("good:group.one")) == ["one"]
    assert _names(_order("good:fleet", "two", "one", "two")) == ["two", "one"]


def test_a_handler_takes_its_policy_along() -> None:
    limpet.open("./fleet").check()
    [job] = jobs_of(_order("other", handler="good:group.one", url="./fleet"))
    assert (job.queue.name, job.queue.policy.max_attempts) == ("other", 7)
    plain = jobs_of(_order("other", "more", handler="good:plain", url="./fleet"))
    assert [each.queue.name for each in plain] == ["other", "more"]


@pytest.mark.parametrize(
    ("order", "said", "hint"),
    [
        (_order(None), "nothing was named to work on", "limpet work app:fleet"),
        (_order("good"), "'good' names no attribute of a module", "module:attribute"),
        (_order("good:"), "'good:' names no attribute", "module:attribute"),
        (_order("./good.py:fleet"), "./good.py is a file, not a module", "write good:fleet"),
        (_order("sub/good.py"), "sub/good.py is a file", "write sub.good:fleet"),
        (_order("nope:fleet"), "there is no module 'nope'", "where it can be imported"),
        (_order("good.sub:fleet"), "there is no module 'good.sub'", ""),
        (_order("nope.sub:fleet"), "there is no module 'nope'", ""),
        (_order("good:flet"), "module 'good' has no 'flet'", "it has good:fleet, good:two"),
        (_order("typing:flet"), "module 'typing' has no 'flet'", "it has no fleet and no task"),
        (_order("good:number"), "good:number is an int, neither a fleet nor a task", "--handler"),
        (_order("good:plain"), "good:plain is a function, neither a fleet nor a task", "--handler"),
        (_order("good:fleet", "three"), "good:fleet has no task 'three'", "it has one, two"),
        (_order("empty:fleet"), "empty:fleet has no tasks", "@fleet.task()"),
        (_order("memory:fleet"), "task 't' lives in memory://", "limpet.testing"),
        (_order("lacks:fleet"), "lacks cannot be imported: ModuleNotFoundError: No module named 'not_th", "correct it"),
        (_order("typo:fleet"), "typo cannot be imported: SyntaxError: ", "nothing was claimed"),
        (_order("exits:fleet"), "exits cannot be imported: SystemExit: 3 (exits.py:2)", "nothing was claimed"),
        (_order("no_url:fleet"), "no_url cannot be imported: no URL was given (no_url.py:3)", "set LIMPET_URL"),
        (_order("locked:fleet"), "locked cannot be imported: Held: lock 'x' is held by", ""),
        (_order(None, handler="good:plain"), "no queue was named", "limpet work QUEUE --handler"),
        (_order("q", handler="good:number"), "good:number is an int, which cannot be called", "name a function"),
    ],
)
def test_what_is_refused_says_what_and_what_to_do(order: WorkerOrder, said: str, hint: str) -> None:
    with pytest.raises(Invalid) as raised:
        jobs_of(order)
    assert str(raised.value).startswith(said)
    assert hint in raised.value.hint
    assert "\n" not in str(raised.value)


def test_an_import_error_names_the_line_of_the_user_not_of_the_library() -> None:
    with pytest.raises(Invalid, match=r"JSONDecodeError: .* \(raises\.py:4\)\n"):
        jobs_of(_order("raises:fleet"))
    with pytest.raises(Invalid, match=r"\(typo\.py:2\)\n"):
        jobs_of(_order("typo:fleet"))


def test_a_fleet_that_is_not_there_is_not_made() -> None:
    with pytest.raises(Missing):
        jobs_of(_order("q", handler="good:plain", url="./nowhere"))
    assert not Path("nowhere").exists()


# ---- lines ----

AT = datetime(2026, 11, 16, 10, 7, 30, tzinfo=UTC)


def _event(**fields: Any) -> WorkerEvent:
    return WorkerEvent(**{"kind": "done", "at": AT, "worker": "host:7/1", **fields})


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            _event(queue="q", id="a.com", attempt=2, seconds=0.5),
            "10:07:30Z done        q a.com attempt 2 0.500 s [host:7/1]",
        ),
        (
            _event(kind="retry", queue="q", id="x", attempt=1, seconds=1.0, after_s=60.0, note="ValueError: no"),
            "10:07:30Z retry       q x attempt 1 1.000 s again in 60 s [host:7/1]: ValueError: no",
        ),
        (_event(kind="trouble", queue="q", note="slow down"), "10:07:30Z trouble     q [host:7/1]: slow down"),
        (_event(kind="handed_back", queue="q", id="x"), "10:07:30Z handed back q x [host:7/1]"),
        (_event(kind="failed", note="a\nb\x1b[31mc\u202e"), "10:07:30Z failed      [host:7/1]: a\\nb\\x1b[31mc\\u202e"),
    ],
)
def test_a_line_for_people(event: WorkerEvent, text: str) -> None:
    assert text_line(event) == text


def test_a_line_for_programs() -> None:
    assert json_line(_event(queue="q", id="x", attempt=1, seconds=0.25)) == (
        '{"at":"2026-11-16T10:07:30Z","event":"done","worker":"host:7/1",'
        '"queue":"q","id":"x","attempt":1,"seconds":0.25}'
    )


def test_progress_says_how_long_it_will_take() -> None:
    tally = TaskCounts(done=1200, failed=3, retried=4, in_flight=8, rate_per_s=10.0)
    said = "1,200 done, 3 failed, 4 retried · 8 in flight · 10.0/s"
    assert progress_line(tally, None) == said
    assert progress_line(tally, 3000) == f"{said} · 3,000 left · about 5 min to go"
    assert progress_line(tally, 0) == f"{said} · 0 left"
    assert progress_line(TaskCounts(lost=1, handed_back=2), 5).startswith(
        "0 done, 0 failed, 0 retried, 1 lost, 2 handed back"
    )


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = ManualRuntime()
    log = Log(runtime, as_json=False, progress=True)
    for second in range(60):
        log.hear(Backlog(pending=100 - second), TaskCounts(done=second, rate_per_s=1.0))
        runtime.sleep(1)
    log.close()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 5
    assert said[0] == "10 done, 0 failed, 0 retried · 0 in flight · 1.0/s · 90 left · about 90 s to go"


def test_progress_counts_a_run_once_for_the_table_and_for_its_line() -> None:
    """Processes report their counts later than the events, and one that was killed never does."""
    table = ProgressTable(ManualRuntime())
    for kind in ("done", "done", "retry", "suspended", "lost"):
        table.hear(_event(kind="started", id="a", queue="q", worker="pi:1/0"))
        table.hear(_event(kind=kind, id="a", queue="q", worker="pi:1/0"))
    table.hear(_event(kind="failed", id="b", queue="r", worker="pi:1/0", tasks=7))
    table.hear(_event(kind="started", id="c", queue="q", worker="pi:1/1"))
    found = table.totals(TaskCounts(done=1, in_flight=3, rate_per_s=0.5))
    assert found == TaskCounts(done=2, failed=7, retried=1, suspended=1, lost=1, in_flight=1, rate_per_s=0.5)


def test_messages_come_back_as_they_were() -> None:
    messages = [_event(queue="q"), TaskCounts(done=3), Backlog(pending=1), WorkerEnded(again=True)]
    assert [decode_message(encode_line(message)) for message in messages] == messages


def test_lines_out_of_pieces() -> None:
    lines = PipeReader()
    assert [lines.feed(piece) for piece in (b"a", b"b\nc", b"\n\nd")] == [[], [b"ab"], [b"c", b""]]


def test_errors_keep_their_kind_across_the_pipe() -> None:
    for kind in (Invalid, Missing):
        error = error_of(StartRefused(kind=kind.__name__, message="m", hint="h"))
        assert (type(error), str(error), error.hint) == (kind, "m", "h")


def test_how_many_are_left() -> None:
    """0 is said only when nothing waited; once more was done than waited, nobody knows until it is counted again."""
    assert left_of(None, TaskCounts(done=5)) is None
    assert left_of((1500, 100), TaskCounts(done=200)) == 1400
    assert left_of((10, 0), TaskCounts(done=9)) == 1
    assert left_of((10, 0), TaskCounts(done=10)) is None
    assert left_of((10, 0), TaskCounts(done=900)) is None
    assert left_of((0, 0), TaskCounts()) == 0
    assert left_of((0, 5), TaskCounts(done=6)) is None
