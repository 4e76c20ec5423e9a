"""`limpet queue retry | cancel | pause | resume | purge | sweep | adopt`: what they do, and what a typo does not."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

import limpet
from cli.harness import Here, answered
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.queue import BucketQueue, Queue
from limpet.testing import drain

CHANGES = [
    ("retry", "enrich", "a"),
    ("retry", "enrich", "--all"),
    ("cancel", "enrich", "a"),
    ("signal", "enrich", "a", "go"),
    ("pause", "enrich"),
    ("resume", "enrich"),
    ("purge", "enrich", "--yes"),
    ("sweep", "enrich"),
]


@pytest.fixture(autouse=True)
def _fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet in memory, which commands and tests find without a URL."""
    monkeypatch.setenv("LIMPET_URL", f"memory://{system().new_id()}")


@pytest.fixture
def queue() -> Queue:
    """Two tasks that failed, one that waits, one that is delayed."""
    queue = limpet.open().queue("enrich")
    for id_ in ("a", "b"):
        queue.push({"n": id_}, id=id_)
        with queue.claim() as claim:
            for task in claim:
                task.fail("no")
    queue.push({"n": "c"}, id="c")
    queue.push({"n": "d"}, id="d", delay_s=600)
    return queue


def _run(here: Here, *arguments: str) -> str:
    done = here("queue", *arguments)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_retry_one(here: Here, queue: Queue) -> None:
    assert _run(here, "retry", "enrich", "a") == "'a' waits again, as 'a~1'\n"
    assert (queue.stats().pending, queue.stats().failed) == (2, 1)
    assert json.loads(_run(here, "retry", "enrich", "b", "--json")) == {"queue": "enrich", "retried": ["b~1"]}


def test_retry_all(here: Here, queue: Queue) -> None:
    assert _run(here, "retry", "enrich", "--all") == "waiting again, 2 tasks: a~1, b~1\n"
    assert (queue.stats().pending, queue.stats().failed) == (3, 0)
    assert _run(here, "retry", "enrich", "--all") == "nothing has failed in 'enrich'\n"


def _fail(queue: Queue, id_: str, error: str) -> None:
    queue.push({}, id=id_)
    with queue.claim() as claim:
        for task in claim:
            task.fail(error)


def test_failed_groups_by_error_and_retry_takes_a_group(here: Here) -> None:
    queue = limpet.open().queue("enrich")
    for n in range(3):
        _fail(queue, f"t{n}", f"TimeoutError: no answer after {n} s")
    _fail(queue, "v", "ValueError: \x1b[31m[red]no[/red]")
    shown = [line.split("\t") for line in _run(here, "failed", "enrich").splitlines()]
    assert shown[0] == ["tasks", "newest", "its id", "error"]
    assert [row[0] for row in shown[1:]] == ["3", "1"]
    assert shown[1][2:] == ["t2", "TimeoutError: no answer after # s"]
    assert shown[2][2:] == ["v", "ValueError: \\x1b[#m[red]no[/red]"]
    told = json.loads(_run(here, "failed", "enrich", "--where", "TIMEOUT", "--since", "1h", "--json"))
    assert [(row["count"], row["ids"], row["age_s"] < 3600) for row in told] == [(3, ["t2", "t1", "t0"], True)]
    assert queue.failed(where="timeout", since_s=3600)[0].ids == ("t2", "t1", "t0")
    cut = _run(here, "failed", "enrich", "-n", "2")
    assert "2 failed tasks read; -n 10 reads more of them." in cut
    assert _run(here, "retry", "enrich", "--where", "no row") == (
        "nothing has failed in 'enrich' with 'no row' in its error\n"
    )
    assert _run(here, "retry", "enrich", "--where", "timeout", "--since", "1h") == (
        "waiting again, 3 tasks: t0~1, t1~1, t2~1\n"
    )
    assert [group.ids for group in queue.failed()] == [("v",)]
    assert _run(here, "retry", "enrich", "--since", "1d", "--all") == "waiting again, 1 task: v~1\n"
    assert _run(here, "failed", "enrich", "--since", "2h") == "nothing has failed in 'enrich' in the last 2 h\n"
    assert json.loads(_run(here, "failed", "enrich", "--json")) == []


def test_errors_that_are_only_a_number_keep_it(here: Here) -> None:
    """`limpet.Fail("404")`: a group that is called `#` says nothing, and would take 404 and 429 together."""
    queue = limpet.open().queue("enrich")
    for id_, error in (("a", "404"), ("b", "429"), ("c", "429")):
        _fail(queue, id_, error)
    rows = [line.split("\t") for line in _run(here, "failed", "enrich").splitlines()[1:]]
    assert [(row[0], row[3]) for row in rows] == [("2", "429"), ("1", "404")]


def test_failed_changes_nothing_and_knows_a_typo(here: Here, queue: Queue) -> None:
    before = {stat.key: stat.version for stat in limpet.open().store.list()}
    _run(here, "failed", "enrich", "--since", "1h")
    assert {stat.key: stat.version for stat in limpet.open().store.list()} == before
    done = here("queue", "failed", "enrihc")
    assert (done.code, done.out) == (1, "")
    assert "did you mean 'enrich'" in done.err
    done = here("queue", "retry", "enrich", "a", "--where", "no")
    assert (done.code, done.err.splitlines()[1]) == (2, "hint: leave the id out, or the options")


def test_retry_wants_one_or_all(here: Here, queue: Queue) -> None:
    done = here("queue", "retry", "enrich", "a", "--all")
    assert (done.code, done.out) == (2, "")
    assert done.err == "limpet: --all means every task that failed\nhint: leave 'a' out, or --all\n"
    done = here("queue", "retry", "enrich")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "limpet: say which task to retry, or --all, --where or --since\nhint: `limpet queue ls enrich --failed`"
    )


@pytest.mark.parametrize(
    ("command", "hint"), [("retry", "limpet queue ls enrich --failed"), ("cancel", "limpet queue ls")]
)
def test_a_task_that_is_not_there(here: Here, queue: Queue, command: str, hint: str) -> None:
    done = here("queue", command, "enrich", "nope")
    assert (done.code, done.out) == (1, "")
    said, advice = done.err.splitlines()
    assert "'nope'" in said
    assert hint in advice


def test_cancel(here: Here, queue: Queue) -> None:
    assert _run(here, "cancel", "enrich", "c") == "'c' is cancelled\n"
    assert queue.result("c").state == "cancelled"
    again = here("queue", "cancel", "enrich", "c")
    assert (again.code, again.out) == (1, "")
    assert again.err == "'c' has ended already; nothing was changed: limpet queue show enrich c\n"
    told = here("queue", "cancel", "enrich", "c", "--json")
    assert (told.code, json.loads(told.out)["cancelled"]) == (1, False)


def test_cancel_of_a_task_that_runs_says_that_its_handler_may_go_on(here: Here, queue: Queue) -> None:
    with queue.claim() as claim:
        [task] = claim
        said = _run(here, "cancel", "enrich", "c")
        assert said.startswith("'c' is cancelled: ")
        assert said.endswith("may still run its handler, and if that succeeds, the task has completed after all\n")
        assert queue.result("c").state == "cancelled"
        task.done("after all")
    assert queue.result("c").state == "completed"


@pytest.mark.parametrize(("options", "called"), [((), 1), (("--from-scratch",), 2)])
def test_a_retry_of_a_durable_task_keeps_its_steps_unless_it_starts_from_scratch(
    here: Here, options: tuple[str, ...], called: int
) -> None:
    fleet = limpet.open()
    calls: list[str] = []

    @fleet.task("orders", max_attempts=1)
    def order() -> None:
        limpet.step(calls.append, "reserve", name="reserve")
        raise RuntimeError("no money")

    order.using(id="seven").push()
    drain(fleet)
    assert _run(here, "retry", "orders", "seven", *options) == "'seven' waits again, as 'seven~1'\n"
    drain(fleet)
    assert calls == ["reserve"] * called


def test_signal(here: Here, queue: Queue) -> None:
    sent = _run(here, "signal", "enrich", "c", "approved", '{"by": "ann"}')
    assert sent == "sent; 'c' does not wait for 'approved' yet\n"
    again = here("queue", "signal", "enrich", "c", "approved")
    assert (again.code, again.out) == (1, "")
    assert again.err == "'approved' was sent to 'c' before, and the first one counts; nothing was changed\n"
    told = here("queue", "signal", "enrich", "c", "rejected", "--json")
    assert (told.code, json.loads(told.out)["sent"]) == (0, True)
    wrong = here("queue", "signal", "enrich", "c", "third", "ann")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.splitlines()[1] == "hint: a text is in double quotes: '\"ann\"'"
    gone = here("queue", "signal", "enrich", "nope", "approved")
    assert (gone.code, gone.err.splitlines()[1]) == (1, "hint: `limpet queue ls enrich` shows what waits")
    seen: list[object] = []

    fleet = limpet.open()

    @fleet.task("enrich")
    def enrich(n: str) -> None:
        seen.append(limpet.wait_signal("approved"))

    drain(fleet)
    assert seen == [{"by": "ann"}]


def test_a_misspelt_signal_is_answered_with_the_name_that_the_task_waits_for(here: Here, queue: Queue) -> None:
    fleet = limpet.open()

    @fleet.task("enrich")
    def enrich(n: str) -> str:
        return f"{limpet.wait_signal('approved')}"

    drain(fleet)
    wrong = here("queue", "signal", "enrich", "c", "aproved")
    assert (wrong.code, wrong.out) == (2, "")
    assert "task 'c' does not wait for the signal 'aproved': it waits for 'approved'" in wrong.err
    assert "'paid' yet" in _run(here, "signal", "enrich", "c", "paid", "--early")
    assert _run(here, "signal", "enrich", "c", "approved", '"ann"') == "'c' gets 'approved'\n"


def test_fail(here: Here, queue: Queue) -> None:
    assert _run(here, "fail", "enrich", "c", "--error", "withdrawn") == "'c' is failed\n"
    assert queue.result("c").error == "withdrawn"
    again = here("queue", "fail", "enrich", "c")
    assert (again.code, again.out) == (1, "")
    assert again.err == "'c' has ended already; nothing was changed: limpet queue show enrich c\n"
    assert here("queue", "fail", "enrich", "nope").code == 1


def test_pause_and_resume(here: Here, queue: Queue) -> None:
    assert _run(here, "pause", "enrich") == "'enrich' is paused; go on with: limpet queue resume enrich\n"
    assert queue.stats().paused
    assert not limpet.open().queue("enrich").claim()
    assert json.loads(_run(here, "resume", "enrich", "--json")) == {"queue": "enrich", "paused": False}
    assert not queue.stats().paused
    _run(here, "pause", "enrich")
    assert _run(here, "resume", "enrich") == "'enrich' is resumed; workers notice within a few seconds\n"


def test_purge_drops_what_waits_and_keeps_what_ended(here: Here, queue: Queue) -> None:
    assert _run(here, "purge", "enrich", "--yes") == "dropped 2 tasks of 'enrich'\n"
    assert (queue.stats().pending, queue.stats().scheduled) == (0, 0)
    assert queue.result("a").state == "failed"


def test_purge_asks(here: Here, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    done = here("queue", "purge", "enrich")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "limpet: 2 tasks would be dropped from 'enrich', 0 of them running, and there is no terminal to ask\n"
        "hint: add --yes\n"
    )
    assert queue.stats().pending == 1


@pytest.mark.parametrize(("answer", "code", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_purge_obeys_the_answer(answer: bytes, code: int, left: int) -> None:
    queue = limpet.open("fleet").queue("enrich")
    queue.push({})
    done = answered(answer, "queue", "purge", "enrich", "-u", "fleet")
    assert done.returncode == code
    assert "Drop them all?" in done.stderr
    assert queue.stats().pending == left


def test_sweep_keeps_receipts_whose_workers_may_keep_them_longer(here: Here, tmp_path: Path) -> None:
    """The command does not know the workers' `retention_s`: an id that was used stays taken."""
    queue = limpet.open(tmp_path).queue("enrich", retention_s=365 * 86400.0)
    queue.push({}, id="a")
    with queue.claim() as claim:
        for task in claim:
            task.done("kept")
    [receipt] = tmp_path.rglob("completed/*")
    old_s = receipt.stat().st_mtime - 40 * 86400
    os.utime(receipt, (old_s, old_s))
    assert _run(here, "sweep", "enrich", "-u", str(tmp_path)) == "'enrich' is tidy; 0 objects removed\n"
    assert queue.result("a").value == "kept"
    assert not queue.push({}, id="a").created


def test_sweep_removes_what_a_crash_left(here: Here, queue: Queue) -> None:
    limpet.open().store.put(Key("queues/enrich/pending/a/task.json"), b"{}")
    assert _run(here, "sweep", "enrich") == "'enrich' is tidy; 1 object removed\n"
    assert json.loads(_run(here, "sweep", "enrich", "--json")) == {"queue": "enrich", "removed": 0}


@pytest.mark.parametrize("arguments", CHANGES, ids=" ".join)
def test_a_mistyped_queue_creates_nothing(here: Here, arguments: tuple[str, ...]) -> None:
    limpet.open().queue("mail").push({})
    done = here("queue", *arguments)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"limpet: there is no queue 'enrich' at {limpet.open().url}\nhint: there is mail\n"
    assert [*limpet.open().store.list_dirs("queues")] == ["mail"]


def test_adopt_says_what_was_taken_over_and_what_was_not(here: Here, tmp_path: Path) -> None:
    for name, text in {
        "pending/a.com/task.json": '{"domain": "a.com"}',
        "pending/b.com/task.json": '{"domain": "b.com"}',
        "pending/b.com/lease.json": "{}",
        "completed/c.com.json": '{"domain": "c.com"}',
        "failed/\x1b[31m.json": "{}",
    }.items():
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_text(text)
    done = here("queue", "adopt", "enrich", "--from", "old")
    assert done.code == 1
    assert done.out == "took 2 tasks into 'enrich': 1 waiting, 1 completed, 0 failed; no original deleted\n"
    bad, held, _ = done.err.splitlines()
    assert bad.startswith("not taken over: failed/\\x1b[31m.json: the name")
    assert held.startswith("1 task has a lease and was skipped; once")
    (tmp_path / "old/failed/\x1b[31m.json").unlink()
    told = json.loads(here("queue", "adopt", "enrich", "--from", "old", "--quiesced", "--json").out)
    assert (told["queue"], told["pending"], told["known"], told["deleted"]) == ("enrich", 1, 2, 4)
    done = here("queue", "adopt", "enrich", "--from", "old")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0] == "limpet: there are no tasks at old"
    assert limpet.open().queue("enrich").stats().pending == 2
    assert here("queue", "adopt", "../enrich", "--from", "old").code == 2


def test_retry_by_a_regular_expression(here: Here, tmp_path: Path) -> None:
    queue = limpet.open(tmp_path / "fleet").queue("jobs")
    for n, error in enumerate(("HTTP 429 slow down", "HTTP 503", "timeout", "error ~ odd")):
        queue.push({"n": n}, id=f"t{n}")
        with queue.claim() as claim:
            for task in claim:
                task.fail(error)
    url = str(tmp_path / "fleet")
    done = here("queue", "failed", "jobs", "--where", "error ~ http (4|5)\\d\\d", "--json", "-u", url)
    assert sorted(id_ for group in json.loads(done.out) for id_ in group["ids"]) == ["t0", "t1"]
    done = here("queue", "retry", "jobs", "--where", "error ~ 429", "--since", "1h", "--json", "-u", url)
    assert json.loads(done.out)["retried"] == ["t0~1"]
    done = here("queue", "retry", "jobs", "--where", "error ~ (", "-u", url)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("limpet: '(' is no regular expression: ")
    done = here("queue", "retry", "jobs", "--where", "eror ~ 429", "-u", url)
    assert (done.code, done.err.splitlines()[0]) == (2, "limpet: tasks cannot be chosen by 'eror'")
    done = here("queue", "retry", "jobs", "--where", "TIMEOUT", "--json", "-u", url)
    assert json.loads(done.out)["retried"] == ["t2~1"]


def test_adopt_in_place_names_what_stays_and_how_long_ids_stay_used(here: Here, tmp_path: Path) -> None:
    old = tmp_path / "data/queues/enrich"
    for name, data in (
        ("pending/a.com/task.json", '{"domain": "a.com"}'),
        ("pending/3f/b.com/task.json", '{"domain": "b.com"}'),
        ("pending/a/b/c/d/task.json", "{}"),
        ("completed/c.com.json", '{"domain": "c.com"}'),
    ):
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text(data)
    refused = here("queue", "adopt", "enrich", "-u", "data")
    assert refused.code == 2
    assert "--quiesced" in refused.err
    done = here("queue", "adopt", "enrich", "--quiesced", "-u", "data")
    assert done.code == 0
    assert done.out == (
        "took 3 tasks into 'enrich': 2 waiting, 1 completed, 0 failed; 2 originals replaced in place; "
        "1 original deleted\n"
    )
    assert "1 other file is no task and stays, such as pending/a/b/c/d/task.json" in done.err
    assert 'retention_s=float("inf") keeps them for ever' in done.err
    shown = here("queue", "show", "enrich", "c.com", "-u", "data")
    assert "receipt" not in shown.out, "no worker has swept yet"


def test_show_tells_how_long_receipts_are_kept(here: Here, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    for name, retention_s, told in (("a", math.inf, "kept for ever"), ("b", 60 * 86400.0, "kept for 60 days")):
        queue = fleet.queue(name, retention_s=retention_s)
        assert isinstance(queue, BucketQueue)
        queue.push({}, id="x")
        with queue.claim() as claim:
            for task in claim:
                task.done()
        queue._sweeper.take_turn()
        assert told in here("queue", "show", name, "x", "-u", "fleet").out
    facts = json.loads(here("queue", "show", "a", "x", "--json", "-u", "fleet").out)
    assert facts["receipts_kept_s"] is None
