"""`limpet work`, in real processes: signals, crashes, bursts, priorities."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from cli.harness import Done, Spawn, alive, limpet_command, on_terminal, poll, read_until
from limpet.cli import main

Run = Callable[..., Done]
APP = """
import os, signal, subprocess, sys, time
from pathlib import Path
import limpet

fleet = limpet.open("./fleet", durability="os")

def note(*words):
    fd = os.open("notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

@fleet.task(max_attempts=2)
def hang(n: int = 0) -> str:
    note(limpet.current_task().attempt, os.getpid())
    while not Path("go").exists():
        time.sleep(0.01)
    return "gone on"

@fleet.task()
def urgent(n: int) -> None:
    note("urgent", os.getpid())

@fleet.task()
def bulk(n: int) -> None:
    note("bulk", os.getpid())

@fleet.task()
def leave() -> None:
    note("leave", os.getpid())
    sys.exit("enough")

@fleet.task()
def shout(text: str) -> list[int]:
    print(text)
    return [subprocess.run(["sh", "-c", f"kill -{name} $$"]).returncode for name in ("TERM", "INT")]

@fleet.task(max_attempts=3, backoff_s=1.0)
def flaky(n: int) -> None:
    note("flaky", limpet.current_task().attempt)
    if limpet.current_task().attempt < 2:
        raise ValueError("not yet")

@fleet.task()
def chat(n: int) -> None:
    import logging
    logging.getLogger("mine").warning("hello %s\\x1b[31m", n)
    try:
        1 / 0
    except ZeroDivisionError:
        logging.exception("it broke")
    logging.info("%d", "x")
    print("printed", n)
"""


LEAVES = """
import asyncio
import app, limpet

fleet = limpet.open("./fleet", durability="os")

class Own(BaseException):
    pass

KINDS = [SystemExit, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, Own]

@fleet.task(max_attempts=1)
def leave_sync(n: int) -> int:
    app.note("leave", n)
    if n % 4 == 3:
        raise KINDS[n // 4 % 5](f"of {n}")
    return n

@fleet.task(max_attempts=1)
async def leave_async(n: int) -> int:
    await asyncio.sleep(0)
    return leave_sync(n)
"""


@pytest.fixture(autouse=True)
def _app() -> None:
    Path("app.py").write_text(APP)


def _queue(name: str) -> limpet.Queue:
    return limpet.open("./fleet", durability="os").queue(name, max_attempts=2)


def _notes() -> list[list[str]]:
    return [line.split() for line in Path("notes").read_text().splitlines()] if Path("notes").exists() else []


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """`run("app:fleet", "--burst")` runs `limpet work` in this process; its worker processes are others."""

    def run_work(*arguments: str) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(("work", *arguments))
        assert isinstance(exit_.value.code, int)
        return Done(exit_.value.code, *capfd.readouterr())

    return run_work


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _next(process: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    """Read JSON lines up to and with the first of this kind."""
    assert process.stderr is not None
    for line in process.stderr:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == kind:
            return event
    raise AssertionError(f"it ended without {kind!r}")


def _pid(event: dict[str, Any]) -> int:
    return int(event["worker"].rpartition(":")[2])


def test_a_burst_does_what_waits_and_leaves(run: Run) -> None:
    ids = _queue("bulk").push_many([{"n": n} for n in range(20)], batch=5)
    _queue("urgent").push({"n": 1, "wrong": 2})
    done = run("app:fleet", "--burst", "-p", "2", "-t", "2", "--json", "--log", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told.pop("seconds") > 0
    assert told == {"done": 20, "failed": 1, "retried": 0, "suspended": 0, "lost": 0, "handed_back": 0, "restarts": 0}
    assert {_queue("bulk").result(id_).state for id_ in ids} == {"completed"}
    events = _events(done.err)
    assert [event["event"] for event in events].count("done") == 20
    [failed] = [event for event in events if event["event"] == "failed"]
    assert {*failed} == {"at", "event", "worker", "queue", "id", "attempt", "seconds", "note"}
    assert failed["note"] == "the payload has a field 'wrong', which urgent(n: int) does not take"


def test_files_of_another_program_are_refused_and_adopt_is_named(run: Run) -> None:
    limpet.open("./fleet", durability="os").check()
    old = Path("fleet/queues/bulk/completed/a.com.json")
    old.parent.mkdir(parents=True)
    old.write_text('{"n": 1}')
    done = run("app:fleet", "-q", "bulk", "--burst")
    assert done.code == 1
    assert "completed/a.com.json is a file of another program, in the folder of queue 'bulk'" in done.err
    assert "`limpet queue adopt bulk --quiesced`" in done.err
    assert old.read_text() == '{"n": 1}'
    command = limpet_command("queue", "adopt", "bulk", "--quiesced", "-u", "fleet")
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0
    assert run("app:fleet", "-q", "bulk", "--burst").code == 0


def test_an_empty_fleet_is_a_short_burst(run: Run) -> None:
    done = run("app:fleet", "--burst")
    assert (done.code, done.out) == (0, "")
    ready, total = done.err.splitlines()
    assert "ready" in ready
    assert ready.endswith(": hang, urgent, bulk, leave, shout, flaky, chat")
    assert total.startswith("0 done, 0 failed, 0 retried in ")


def test_the_pause_between_polls_is_an_option_of_the_worker(run: Run) -> None:
    pushed = _queue("bulk").push({"n": 1})
    done = run("app:fleet", "--burst", "--poll-s", "7.5")
    assert done.code == 0, done.err
    assert _queue("bulk").result(pushed.id).state == "completed"
    refused = run("app:fleet", "--burst", "--poll-s", "0")
    assert refused.code == 2
    assert "--poll-s" in refused.err


def test_an_earlier_queue_goes_first(run: Run) -> None:
    for n in range(5):
        _queue("bulk").push({"n": n})
        _queue("urgent").push({"n": n})
    assert run("app:fleet", "-q", "urgent", "-q", "bulk", "--burst").code == 0
    assert [note[0] for note in _notes()] == ["urgent"] * 5 + ["bulk"] * 5


def test_only_the_queues_that_were_named(run: Run) -> None:
    for name in ("bulk", "urgent"):
        _queue(name).push({"n": 1})
    assert run("app:bulk", "--burst").code == 0
    assert [note[0] for note in _notes()] == ["bulk"]
    assert run("app:fleet", "-q", "urgent", "--burst").code == 0
    assert [note[0] for note in _notes()] == ["bulk", "urgent"]


def test_a_handler_for_queues_without_a_task(run: Run) -> None:
    package = Path("jobs")
    package.mkdir()
    (package / "sites.py").write_text("def enrich(domain: str) -> str:\n    return domain.upper()\n")
    one = _queue("one").push({"domain": "a.com"})
    two = _queue("two").push({"domain": "b.com"})
    done = run("one", "-q", "two", "--handler", "jobs.sites:enrich", "--url", "./fleet", "--burst")
    assert done.code == 0, done.err
    assert (_queue("one").result(one.id).value, _queue("two").result(two.id).value) == ("A.COM", "B.COM")


def test_the_url_is_what_open_without_one_opens(run: Run) -> None:
    Path("bare.py").write_text("import limpet\nfleet = limpet.open()\n@fleet.task()\ndef add(a: int): return a + 1\n")
    pushed = _queue("add").push({"a": 1})
    assert run("bare:fleet", "--burst", "--url", "./fleet").code == 0
    assert _queue("add").result(pushed.id).value == 2


def test_what_a_handler_prints_and_starts(run: Run) -> None:
    """Commands that a task starts get default signals; stdout is the handler's, unless it is for the summary."""
    pushed = _queue("shout").push({"text": "to stdout"})
    assert run("app:fleet", "--burst").out == "to stdout\n"
    assert _queue("shout").result(pushed.id).value == [-signal.SIGTERM, -signal.SIGINT]
    _queue("shout").push({"text": "to stderr"})
    done = run("app:fleet", "--burst", "--json")
    assert json.loads(done.out)["done"] == 1
    assert "to stderr" in done.err


def test_quiet_says_only_what_went_wrong(run: Run) -> None:
    _queue("bulk").push({"n": 1})
    _queue("bulk").push({"n": "x"})
    done = run("app:fleet", "--burst", "--quiet", "--log", "json")
    assert [event["event"] for event in _events(done.err)] == ["ready", "failed"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_come_to_its_end(spawn: Spawn, number: signal.Signals) -> None:
    pushed = _queue("hang").push({})
    later = _queue("bulk").push({"n": 1})
    worker = spawn("work", "app:fleet", "-q", "hang", "-q", "bulk", "--json", "--log", "json")
    _next(worker, "started")
    worker.send_signal(number)
    _next(worker, "stopping")
    time.sleep(1.0)  # limpet has told its worker process, and nothing shows when that has read it
    Path("go").touch()
    out, _ = worker.communicate()
    assert worker.returncode == 0
    assert json.loads(out)["done"] == 1
    assert _queue("hang").result(pushed.id).value == "gone on"
    assert _queue("bulk").result(later.id).state == "pending"


def test_after_the_grace_time_the_task_goes_back_and_keeps_its_attempt(run: Run, spawn: Spawn) -> None:
    pushed = _queue("hang").push({})
    worker = spawn("work", "app:fleet", "--grace", "0.2", "--json", "--log", "json")
    _next(worker, "started")
    worker.terminate()
    assert _next(worker, "handed_back")["id"] == pushed.id
    out, _ = worker.communicate()
    assert (worker.returncode, json.loads(out)["handed_back"]) == (0, 1)
    Path("go").touch()
    assert run("app:fleet", "--burst").code == 0
    assert [attempt for attempt, _ in _notes()] == ["1", "1"]
    assert _queue("hang").result(pushed.id).state == "completed"


def test_a_second_signal_hands_back_at_once(spawn: Spawn) -> None:
    pushed = _queue("hang").push({})
    worker = spawn("work", "app:fleet", "--grace", "600", "--log", "json")
    _next(worker, "started")
    worker.terminate()
    _next(worker, "stopping")
    worker.terminate()
    _next(worker, "handed_back")
    worker.communicate()
    assert worker.returncode == 0
    with _queue("hang").claim() as claim:
        assert [(task.id, task.attempt) for task in claim] == [(pushed.id, 1)]


def test_killed_limpet_leaves_no_worker_and_its_task_goes_back(spawn: Spawn) -> None:
    _queue("hang").push({})
    worker = spawn("work", "app:fleet", "--log", "json")
    child = _pid(_next(worker, "ready"))
    _next(worker, "started")
    worker.kill()
    poll("the child ended", lambda: not alive(child))
    with _queue("hang").claim() as claim:
        assert [task.attempt for task in claim] == [1]


def test_a_killed_worker_is_replaced_later_each_time(spawn: Spawn) -> None:
    worker = spawn("work", "app:fleet", "--log", "json", "--json")
    pids = []
    for wait in ("0.5 s", "1 s"):
        pids.append(_pid(_next(worker, "ready")))
        os.kill(pids[-1], signal.SIGKILL)
        note = _next(worker, "crashed")["note"]
        assert note == f"process {pids[-1]} was killed by SIGKILL; another one starts in {wait}"
    pids.append(_pid(_next(worker, "ready")))
    assert len(set(pids)) == 3
    _queue("bulk").push({"n": 1})
    assert _pid({"worker": _next(worker, "done")["worker"].partition("/")[0]}) == pids[-1]
    worker.terminate()
    assert json.loads(worker.communicate()[0])["restarts"] == 2
    assert worker.returncode == 0


def test_a_worker_that_is_asked_to_end_is_replaced_at_once(spawn: Spawn) -> None:
    worker = spawn("work", "app:fleet", "--log", "json")
    first = _pid(_next(worker, "ready"))
    os.kill(first, signal.SIGTERM)
    assert worker.stderr is not None
    event = json.loads(worker.stderr.readline())
    assert (event["event"], _pid(event) != first) == ("ready", True)
    worker.terminate()
    worker.communicate()
    assert worker.returncode == 0


def test_a_handler_that_exits_has_failed_and_its_process_lives(spawn: Spawn) -> None:
    _queue("leave").push({})
    worker = spawn("work", "app:fleet", "--log", "json")
    assert _next(worker, "retry")["note"].startswith("SystemExit")
    worker.terminate()
    worker.communicate()
    assert worker.returncode == 0


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_of_40_tasks_the_ten_that_raise_anything_have_their_errors_and_no_process_is_replaced(
    run: Run, kind: str, batch: bool
) -> None:
    Path("leaves.py").write_text(LEAVES)
    queue = limpet.open("./fleet", durability="os").queue(f"leave_{kind}", max_attempts=1)
    payloads = [{"n": n} for n in range(40)]
    ids: list[str] = [*queue.push_many(payloads)] if batch else [queue.push(each).id for each in payloads]
    done = run("leaves:fleet", "-q", f"leave_{kind}", "--burst", "-p", "2", "-t", "2", "--json", "--log", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    del told["seconds"]
    assert told == {"done": 30, "failed": 10, "retried": 0, "suspended": 0, "lost": 0, "handed_back": 0, "restarts": 0}
    kinds = ["SystemExit", "CancelledError", "GeneratorExit", "KeyboardInterrupt", "Own"]
    for n, result in enumerate(queue.results(ids)):
        said = f"{kinds[n // 4 % 5]}: of {n}" if n % 4 == 3 else None
        assert (result.value, result.error) == (None if said else n, said)
    assert sorted(int(words[1]) for words in _notes()) == [*range(40)], "each was run once"
    assert not {"crashed", "trouble"} & {event["event"] for event in _events(done.err)}


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_comes_while_a_handler_runs_stops_the_worker(spawn: Spawn, name: str) -> None:
    """Unlike a KeyboardInterrupt that the handler raises by itself."""
    queue = _queue("hang")
    pushed = queue.push({"n": 1})
    worker = spawn("work", "app:fleet", "-q", "hang", "--grace", "30", "--log", "json", "--json")
    _next(worker, "started")
    worker.send_signal(getattr(signal, name))
    Path("go").touch()
    told = json.loads(worker.communicate()[0])
    assert (worker.returncode, told["done"], told["handed_back"], told["restarts"]) == (0, 1, 0, 0)
    assert queue.result(pushed.id).value == "gone on"


def test_a_process_is_replaced_after_max_tasks(run: Run) -> None:
    _queue("bulk").push_many([{"n": n} for n in range(5)])
    done = run("app:fleet", "--burst", "--max-tasks-per-child", "2", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["done"], told["restarts"]) == (5, 2)
    pids = [pid for _, pid in _notes()]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]
    assert "crashed" not in done.err


def test_progress_lives_in_one_line_of_the_terminal() -> None:
    _queue("hang").push({})
    pid, fd = on_terminal("work", "app:fleet", "-q", "hang", "--progress")
    said = read_until(fd, lambda said: b"1 in flight" in said and b"1 left" in said)
    Path("go").touch()
    said = read_until(fd, lambda said: b"1 done" in said, said)
    os.write(fd, b"\x03")
    said = read_until(fd, lambda said: b"1 done, 0 failed, 0 retried in " in said, said)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)
    assert b"started" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nope:fleet",), 2, "there is no module 'nope'"),
        (
            ("broken:fleet", "-p", "2"),
            2,
            "broken cannot be imported: ZeroDivisionError: division by zero (broken.py:2)",
        ),
        (("app:fleet", "-q", "nope"), 2, "app:fleet has no task 'nope'"),
        (("q", "--handler", "app:urgent", "-u", "./nowhere"), 1, "there is no fleet at ./nowhere"),
    ],
)
def test_what_cannot_begin_is_one_line_and_a_hint(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    Path("broken.py").write_text("def f():\n    return 1 / 0\nf()\n")
    done = run(*arguments)
    assert (done.code, done.out) == (code, "")
    line, hint = done.err.splitlines()
    assert line == f"limpet: {said}"
    assert hint.startswith("hint: ")


def test_a_module_that_kills_the_process_does_not_make_a_loop(run: Run) -> None:
    Path("deadly.py").write_text("import os\nos._exit(9)\n")
    done = run("deadly:fleet")
    assert (done.code, done.out) == (1, "")
    line, hint = done.err.splitlines()
    assert line.startswith("limpet: process ")
    assert line.endswith(" ended with exit code 9 while it imported the module")
    assert hint.startswith("hint: import it by hand")


def test_a_typed_url_of_another_fleet_is_refused(run: Run) -> None:
    """The module opens ./fleet by name, so that --url would be ignored, and the tasks of ./fleet run."""
    limpet.open("./fleet").queue("bulk").push({"n": 1})
    done = run("app:fleet", "--burst", "-u", "./other")
    assert (done.code, done.out) == (2, "")
    line, hint = done.err.splitlines()
    assert line == "limpet: app:fleet is at ./fleet, and --url says ./other"
    assert hint.startswith("hint: leave --url out; or write limpet.open() in the module")
    assert limpet.open("./fleet").queue("bulk").stats().pending == 1
    done = run("app:fleet", "--burst", "--quiet", "-u", str(Path("fleet").absolute()) + "/")
    assert done.code == 0, "the same place, written otherwise"
    assert done.err.splitlines()[-1].startswith("1 done, 0 failed, 0 retried in ")


def test_the_last_line_and_the_json_tell_what_was_suspended(run: Run) -> None:
    Path("waits.py").write_text(
        "import limpet\n"
        'fleet = limpet.open("./fleet", durability="os")\n'
        "@fleet.task\n"
        "def order() -> None:\n"
        "    limpet.step(int)\n"
        '    limpet.wait_signal("approved")\n'
    )
    limpet.open("./fleet").queue("order").push({}, id="one")
    done = run("waits:fleet", "--burst", "--quiet")
    assert re.fullmatch(r"0 done, 0 failed, 0 retried, 1 suspended in \d+ s", done.err.splitlines()[-1])
    limpet.open("./fleet").queue("order").signal("one", "approved")
    facts = json.loads(run("waits:fleet", "--burst", "--quiet", "--json").out)
    assert (facts["done"], facts["suspended"]) == (1, 0)


# ---- logging ----


def test_what_a_handler_logs_has_its_task(run: Run) -> None:
    pushed = _queue("chat").push({"n": 7})
    done = run("app:fleet", "--burst", "--quiet", "--log", "json")
    assert done.out == "printed 7\n"
    events = _events(done.err)
    logged = [event for event in events if event["event"] == "log"]
    assert {(event["queue"], event["id"], event["attempt"]) for event in logged} == {("chat", pushed.id, 1)}
    assert [(event["level"], event["logger"]) for event in logged] == [
        ("WARNING", "mine"),
        ("ERROR", "root"),
        ("INFO", "root"),
    ]
    assert logged[0]["message"] == "hello 7\x1b[31m"
    assert logged[1]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert "does not fit its arguments" in logged[2]["message"]


def test_a_log_for_people_is_marked_and_escaped(run: Run) -> None:
    pushed = _queue("chat").push({"n": 7})
    said = run("app:fleet", "--burst", "--quiet").err
    [hello] = [line for line in said.splitlines() if "hello" in line]
    assert f"chat {pushed.id} attempt 1" in hello
    assert hello.endswith("WARNING mine: hello 7\\x1b[31m")
    assert "\n| ZeroDivisionError: division by zero\n" in said


@pytest.mark.parametrize(("arguments", "mine"), [((), True), (("--log", "json"), False)])
def test_logging_of_the_users_own(run: Run, arguments: tuple[str, ...], mine: bool) -> None:
    """It is kept; with --log json, what it would write to the terminal is one of the JSON lines instead."""
    form = "mine %(limpet_worker)s %(limpet_queue)s %(limpet_attempt)s %(limpet_task)s %(message)s"
    own = f"import logging\nlogging.basicConfig(format={form!r}, level=30)\n"
    Path("app.py").write_text(own + APP)
    pushed = _queue("chat").push({"n": 7})
    said = run("app:fleet", "--burst", "--quiet", *arguments).err
    assert (re.search(rf"^mine \S+:\d+ chat 1 {pushed.id} hello 7", said, re.MULTILINE) is not None) is mine
    if not mine:
        assert next(event["message"] for event in _events(said) if event["event"] == "log") == "hello 7\x1b[31m"


# ---- until empty ----


def test_until_empty_waits_for_what_rests_and_burst_does_not(run: Run) -> None:
    _queue("flaky").push({"n": 1})
    done = run("app:fleet", "-q", "flaky", "--burst", "--json")
    assert json.loads(done.out)["retried"] == 1
    assert _queue("flaky").stats().pending == 1
    done = run("app:fleet", "-q", "flaky", "--until-empty", "--json")
    assert (done.code, json.loads(done.out)["done"]) == (0, 1), done.err
    _queue("flaky").push({"n": 2})
    told = json.loads(run("app:fleet", "-q", "flaky", "--until-empty", "--json").out)
    assert (told["done"], told["retried"], told["restarts"]) == (1, 1, 0)
    assert _queue("flaky").stats().pending == 0


def test_until_empty_can_be_stopped_while_it_waits(spawn: Spawn) -> None:
    with _queue("urgent").claim():
        _queue("urgent").push({"n": 1})
    claim = _queue("urgent").claim()
    assert claim
    worker = spawn("work", "app:fleet", "-q", "urgent", "--until-empty", "--log", "json")
    _next(worker, "ready")
    worker.terminate()
    worker.communicate()
    assert worker.returncode == 0


def test_a_worker_on_a_paused_queue_says_so(run: Run) -> None:
    _queue("bulk").push({"n": 1})
    _queue("bulk").pause()
    events = _events(run("app:fleet", "-q", "bulk", "-q", "urgent", "--burst", "--log", "json").err)
    assert [event["queue"] for event in events if event["event"] == "warning"] == ["bulk"]


def test_what_handlers_print_does_not_break_the_progress() -> None:
    """On a terminal, what is printed comes above the live line, which goes on."""
    for n in range(3):
        _queue("chat").push({"n": n})
    _queue("hang").push({})
    pid, fd = on_terminal("work", "app:fleet", "-q", "chat", "-q", "hang", "--progress")
    said = read_until(fd, lambda said: b"3 done" in said and b"1 in flight" in said and said.count(b"printed") >= 3)
    Path("go").touch()
    said = read_until(fd, lambda said: b"4 done" in said, said)
    os.write(fd, b"\x03")
    said = read_until(fd, lambda said: b"4 done, 0 failed, 0 retried in " in said, said)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", said)
    assert re.findall(rb"[^\r\n]printed \d", text) == [], "it begins a line of its own"
